"""Keep the samples about which the model is undecided: Dyn-Unc."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from infobatch.checks import check_count
from infobatch.memory.tracks import Columns, Track, moved_on
from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Samples
from infobatch.policies.checks import check_ratio
from infobatch.policies.ranking import lowest

_MOST_WINDOWS = np.uint16(np.iinfo(np.uint16).max)  # a count stays there instead of overflowing


@dataclass(frozen=True)
class Uncertainty:
    """``uncertainty``: the mean, over all windows of ``length`` visits, of the spread of p(label).

    NaN before the first window is full. The spread is the standard deviation, with divisor length −
    1. p(label) is exp(−loss) or, with a ``channel``, the value reported under that name. Takes 4 ×
    ``length`` + 6 bytes per sample.
    """

    length: int
    channel: str | None = None

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing seen."""
        count = len(scores)
        return {
            "probabilities": np.full((count, self.length), np.nan, np.float32),
            "windows": np.zeros(count, np.uint16),
            "uncertainty": np.full(count, np.nan, np.float32),
        }

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Add a probability and, where the window is full, a spread."""
        newest = scores if self.channel else _probability(scores)
        probabilities = moved_on(old["probabilities"], newest)
        spread = _spread(probabilities)  # NaN where the window is not full
        windows = np.minimum(old["windows"], _MOST_WINDOWS - 1)
        windows += ~np.isnan(spread)
        before, divisor = old["uncertainty"], windows
        if int(windows.min(initial=2)) < 2:  # otherwise none has its first spread
            before = np.where(windows > 1, before, np.float32(0))
            divisor = np.maximum(windows, np.uint16(1))
        spread -= before
        spread /= divisor
        spread += before
        return {"probabilities": probabilities, "windows": windows, "uncertainty": spread}


def _probability(losses: FloatArray) -> FloatArray:
    """exp(−loss), at most 1."""
    exponents = np.negative(losses)
    np.minimum(exponents, np.float32(0), out=exponents)
    return np.exp(exponents, out=exponents)


def _spread(windows: npt.NDArray[Any]) -> FloatArray:
    """The standard deviation of each row."""
    contrasts, weights = _helmert(windows.shape[1])
    # Products of matrices, which also transpose: numpy is slow on short rows.
    squares = contrasts @ windows.T
    np.square(squares, out=squares)
    spread: FloatArray = weights @ squares
    return np.sqrt(spread, out=spread)


@cache
def _helmert(length: int) -> tuple[FloatArray, FloatArray]:
    """Contrasts of ``length`` numbers, and weights with which their squares add up to the variance.

    Contrast k is the sum of the first k numbers less k times the next one (Helmert, 1876). They are
    whole numbers, so that a window of ones or zeros has a variance of exactly 0: such samples stay
    tied.
    """
    k = np.arange(1, length)
    contrasts = np.tril(np.ones((length - 1, length), np.float32))
    contrasts[k - 1, k] = -k
    weights = 1 / (k * (k + 1) * (length - 1))
    return contrasts, weights.astype(np.float32)


@dataclass(frozen=True)
class DynUncPrune:
    """Keep the samples whose probability of the label varies most over the epochs.

    He et al., "Large-scale Dataset Pruning with Dynamic Uncertainty" (Dyn-Unc, 2023): the
    uncertainty is the standard deviation of p(label) in each window of J = 10 consecutive visits,
    averaged over the windows; the share 1 − ``ratio`` with the highest uncertainty is kept, 75% in
    the paper.

    * Biased: kept samples weigh 1.
    * Remembers the last J probabilities and the mean: 50 bytes per sample with the last loss. One
      selection per epoch, no sort.
    * Our reading: the paper selects once, after a full training run, and then trains again on the
      selection. Here the samples are ranked again in every epoch after the first J; the uncertainty
      of samples left out does not change, and they return when others fall below it.
    * Where the loss is a cross-entropy, exp(−loss) is p(label). For other losses ``extras=True`` takes
      it from ``update(losses, extras={"probability": …})``.

    >>> DynUncPrune(0.25)
    DynUncPrune(ratio=0.25, window=10, extras=False)
    """

    ratio: float = 0.25
    window: int = 10
    extras: bool = False
    biased: ClassVar[bool] = True
    budget: ClassVar[Literal["own"]] = "own"
    default_delta: ClassVar[float] = 1.0
    shardable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio("DynUncPrune(ratio=…)", self.ratio)
        check_count(
            "DynUncPrune(window=…)", self.window, "a spread needs at least two visits", least=2
        )

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The uncertainty of each sample."""
        return (Uncertainty(self.window, "probability" if self.extras else None),)

    @property
    def first_epoch(self) -> int:
        """The first epoch in which a window is full."""
        return self.window

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples that are left out, 2 for ties with the last one kept."""
        share = self.ratio if samples.target is None else samples.target
        values = samples["uncertainty"]
        cut = lowest(values, share, cost=samples.cost, total=samples.sum)
        return Strata(cut.labels(values), cut.keep(), weights="ones", thresholds=cut.thresholds)
