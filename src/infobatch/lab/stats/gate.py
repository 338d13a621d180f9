"""The regime gate: can this comparison tell a good rule from a bad one?

If training on all data for half the epochs is as good as for all of them, training is longer than
it needs to be. Every way of training less then looks lossless, and the comparison tests none of
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from infobatch.lab.stats.contrast import CONFIDENCE, FEWEST_SEEDS, Contrast, contrast
from infobatch.lab.stats.crossing import Curve
from infobatch.lab.stats.measurements import Measurement, PairedRuns
from infobatch.lab.stats.outcome import decimals

Regime = Literal["can tell", "too long", "unknown"]
HALF = 0.5


@dataclass(frozen=True)
class Gate:
    """Whether a share of the length loses less than the margin.

    ``loss`` is what full data loses at ``length`` times its longest training, above zero if shorter
    is worse. ``length`` is a half, or the shortest available if all are longer.
    """

    regime: Regime
    length: float | None
    loss: Contrast | None
    margin: float
    text: str


def regime_gate(
    measurements: Iterable[Measurement],
    *,
    margin: float,
    higher_is_better: bool,
    full: str = "full",
    confidence: float = CONFIDENCE,
) -> Gate:
    """Judge whether half the length is as good, interpolated on full data's curve if not run.

    The gate answers once the whole interval of the loss is on one side of the margin.
    """
    digits = decimals(margin)
    runs = PairedRuns(measurements, higher_is_better=higher_is_better, full=full)
    if len(runs.lengths) < 2 or not runs.seeds:
        text = "Whether training is longer than it needs to be is unknown: "
        text += "full data has not been trained for two lengths on a common seed."
        return Gate("unknown", None, None, margin, text)
    _, quality = runs.full_table(runs.seeds)
    longest = runs.lengths[-1]
    half = max(HALF * longest, runs.lengths[0])
    # Over lengths, because a cost may have a fixed part; and as measured, because pooling half the
    # length with the full length would make them equal.
    curve = Curve(np.log(np.array(runs.lengths)), np.zeros_like(quality), quality)
    at_half = curve.at(math.log(half))
    loss = contrast(quality[-1] - at_half, confidence=confidence)
    share = half / longest
    regime = _regime(loss, margin, share)
    return Gate(regime, share, loss, margin, _text(regime, loss, margin, share, digits))


def _regime(loss: Contrast, margin: float, share: float) -> Regime:
    if loss.low is None or loss.high is None or loss.count < FEWEST_SEEDS:
        return "unknown"
    if loss.low > margin:
        return "can tell"  # if the share is above one half, a half loses even more
    return "too long" if loss.high < margin and share <= HALF else "unknown"


def _text(regime: Regime, loss: Contrast, margin: float, share: float, digits: int) -> str:
    if regime == "too long":
        return (
            f"Training is longer than it needs to be: all data for {share:g} × the epochs is as "
            "good. Shorten it first; this run cannot judge pruning."
        )
    verb = "gains" if loss.mean < 0 else "loses"
    sentence = f"full data for {share:g} × the epochs {verb} {abs(loss.mean):.{digits}f}"
    if loss.low is not None and loss.high is not None:
        sentence += f" ({loss.low:.{digits}f} to {loss.high:.{digits}f})".replace("-", "−")
    if regime == "can tell":
        return f"Training is not longer than it needs to be: {sentence}, more than the margin."
    why = f"the margin is {margin:g}"
    if loss.count < FEWEST_SEEDS:
        why += f" and it takes at least {FEWEST_SEEDS} seeds to tell"
    elif share > HALF:
        why += " and half the epochs have not been run"
    return f"Whether training is longer than it needs to be is not clear: {sentence}; {why}."
