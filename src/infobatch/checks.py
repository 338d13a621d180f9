"""The checks of what a user passes: each error says what was called, what it got, what to do."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch


def check_count(name: str, value: Any, why: str, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``, or refuse the argument ``name``."""
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    if isinstance(value, bool) or count < least:
        raise ValueError(f"{name}={value!r} is not a whole number from {least} on: {why}.")
    return count


def check_delta(delta: Any) -> float:
    """Return delta, the share of the epochs that prune, or refuse it."""
    if not isinstance(delta, int | float | np.floating) or not 0 <= delta <= 1:
        raise ValueError(
            f"delta={delta!r} is not a share of the epochs. Expected a number in [0, 1]: 0.875 "
            "prunes in the first seven eighths of the epochs, 0 never, 1 always."
        )
    return float(delta)


def check_losses(call: str, losses: object) -> None:
    """Refuse anything but one floating point loss a sample."""
    if not isinstance(losses, torch.Tensor):
        raise TypeError(
            f"{call} got {type(losses).__name__}, expected a tensor with one loss a sample. Build "
            'the criterion with reduction="none" and pass what it returns.'
        )
    if losses.dim() != 1:
        what = "a scalar" if losses.dim() == 0 else f"losses of shape {tuple(losses.shape)}"
        remedy = (
            'Build the criterion with reduction="none".'
            if losses.dim() == 0
            else "Reduce each sample's losses to one number, for instance losses.flatten(1).mean(1)."
        )
        raise ValueError(f"{call} got {what}, expected one loss a sample: a 1-D tensor. {remedy}")
    if not losses.is_floating_point():
        raise TypeError(
            f"{call} got losses of {losses.dtype}, expected floating point numbers: an integer has "
            "no gradient. Pass the criterion's output, not the labels or predictions."
        )
    if not losses.shape[0]:
        raise ValueError(
            f"{call} got no losses, expected one a sample. For a batch without samples call skip()."
        )


def check_scores(scores: object, losses: torch.Tensor) -> None:
    """Refuse scores that do not lie beside the losses."""
    if not isinstance(scores, torch.Tensor) or scores.shape != losses.shape:
        got = getattr(scores, "shape", type(scores).__name__)
        raise ValueError(
            f"update(scores=…) got {got}, expected one score a sample, as the losses have: a "
            f"tensor of shape {tuple(losses.shape)}."
        )


def check_index(call: str, index: Any, losses: torch.Tensor) -> torch.Tensor:
    """Return the samples' indices on the losses' device, or refuse them."""
    samples = index if isinstance(index, torch.Tensor) else torch.as_tensor(index)
    if samples.is_floating_point() or samples.dtype is torch.bool or samples.shape != losses.shape:
        raise ValueError(
            f"{call}(index=…) got {samples.dtype} of shape {tuple(samples.shape)}, expected a sample "
            f"index for each of the {len(losses)} losses. If a collate function drops samples, "
            "drop their indices with them (see with_index)."
        )
    if samples.dtype is torch.int64 and samples.device == losses.device:
        return samples
    return samples.to(losses.device, torch.int64, non_blocking=True)
