"""Checks of a policy's arguments."""

from __future__ import annotations

import numpy as np


def check_ratio(argument: str, ratio: object) -> None:
    """Raise an error for a prune ratio outside [0, 1).

    Args:
        argument: how the user spelled it, such as ``"MyPrune(ratio=…)"``.
        ratio: the share of samples to prune.

    Raises:
        ValueError: if it is not such a share.
    """
    if not isinstance(ratio, int | float | np.floating) or not 0 <= ratio < 1:
        swapped = isinstance(ratio, int) and ratio > 1
        raise ValueError(
            f"{argument} got {ratio!r}, expected a share in [0, 1): 0 prunes nothing, 0.5 is the "
            "paper's default, and 1 would leave no sample to carry the weight of the pruned ones."
            + (
                " Is it the number of epochs? The order is (dataset, num_epochs, prune_ratio, delta)."
                if swapped
                else ""
            )
        )


def check_smoothing(argument: str, smoothing: object) -> None:
    """Raise an error for a smoothing outside [0, 1)."""
    if not isinstance(smoothing, int | float | np.floating) or not 0 <= smoothing < 1:
        raise ValueError(
            f"{argument} got {smoothing!r}, expected a number in [0, 1): 0 ranks by the last score, "
            "0.7 gives the average of the earlier ones 70% of the weight."
        )


def check_number(
    argument: str,
    number: object,
    why: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float = float("inf"),
) -> None:
    """Raise an error for anything but a number of at least ``least`` (or above ``above``) and at most ``most``."""
    fits = isinstance(number, int | float | np.floating) and not isinstance(number, bool)
    if fits:
        value = float(number)  # type: ignore[arg-type]
        fits = value <= most and (value > above if least is None else value >= least)  # type: ignore[operator]
    if fits:
        return
    start = f">= {least:g}" if least is not None else f"> {above:g}"
    end = "" if most == float("inf") else f" and <= {most:g}"
    raise ValueError(f"{argument} got {number!r}, expected a number {start}{end}: {why}.")
