"""A budget for each class, larger where the loss is larger: RCAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_ratio, check_smoothing
from infobatch.policies.classes import numbered
from infobatch.policies.levels import Array, strata_of_cells

_BINS = 128  # of the losses of a class
_UNSEEN = _BINS  # the bin of samples without a score
_WIDTH = _BINS + 1
_BLOCK = 1 << 17


@dataclass(frozen=True)
class RcapPrune(Policy):
    """Give each class a budget by its loss, and within a class keep hard samples more often.

    Hassan et al., "RCAP: Robust, Class-Aware, Probabilistic Dynamic Dataset Pruning" (2025): of the
    samples to keep, class c gets a part in proportion to √(its mean loss × its share of the data), at
    most all of it; within the class a sample is drawn in proportion to exp(min(loss, ln K) / ``beta``),
    with K classes. Needs ``labels=`` (or a data set with ``targets``).

    * Biased: kept samples weigh 1.
    * Remembers the last loss: 4 bytes per sample, 8 with ``smoothing``. One count of losses by class and
      bin, no sort.
    * Our reading: a sample is kept with the probability p = min(1, c · exp(…)) that fills its class's
      budget, instead of samples being drawn one after the other; losses are rounded to steps of ln
      K / 128; the
      class loss is the mean of the clipped losses of all of its samples, not only of those in the last
      epoch.
    * What a class cannot use is redistributed among the others. The published code redistributes
      the full budget instead, and so keeps more than was asked for.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).
        beta: the temperature of the losses: the larger, the more evenly a class is drawn from.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> RcapPrune(0.7)
    RcapPrune(ratio=0.7, beta=1.0, smoothing=0.0)
    """

    ratio: float = 0.5
    beta: float = 1.0
    smoothing: float = 0.0
    budget = "own"
    default_delta = 1.0
    needs_labels = True

    def __post_init__(self) -> None:
        check_ratio("RcapPrune(ratio=…)", self.ratio)
        why = "the temperature of the losses: the larger, the more evenly a class is drawn from"
        check_number("RcapPrune(beta=…)", self.beta, why, above=0)
        check_smoothing("RcapPrune(smoothing=…)", self.smoothing)

    def strata(self, samples: Samples) -> Strata:
        """Group the samples by their probabilities."""
        assert samples.labels is not None
        share = self.ratio if samples.target is None else samples.target
        classes, number = numbered(samples.labels)
        highest = float(np.log(max(_present(classes, number), 2)))
        cells, counts, masses, sums = _cells(samples, classes, number, highest)
        losses = (np.arange(_BINS) + 0.5) * highest / _BINS
        seen, known = masses[:, :_BINS], counts[:, :_BINS].sum(1)
        size = masses.sum(1)
        mean_loss = np.divide(sums, known, out=np.ones(number), where=known > 0)
        wanted = (1 - share) * float(size.sum())
        budgets = filled(np.sqrt(mean_loss * size), size, wanted)
        keep = np.ones_like(masses)
        hardness = np.exp((losses - highest) / self.beta)
        keep[:, :_BINS] = _probabilities(seen, hardness, budgets - masses[:, _UNSEEN])
        return strata_of_cells(cells, keep.ravel(), counts.ravel(), weights="ones")


def filled(parts: Array, most: Array, total: float) -> Array:
    """Divide ``total`` in proportion to ``parts``, giving none more than its ``most``."""
    given, free = np.zeros_like(parts), most > 0
    while free.any() and total > 0:
        shares = np.where(free, parts, 0.0)
        if not shares.any():
            shares = np.where(free, most, 0.0)
        offered = total * shares / shares.sum()
        full = free & (offered >= most)
        if not full.any():
            given += offered
            break
        given[full] = most[full]
        total -= float(most[full].sum())
        free &= ~full
    return given


def _probabilities(masses: Array, hardness: Array, budgets: Array) -> Array:
    """For each class p = min(1, c × hardness), with the c that spends its budget.

    ``hardness`` increases from bin to bin, so the bins that are certain to be kept come last; c is
    found by trying every number of such bins.
    """
    weighted = (masses * hardness).cumsum(1)
    after = masses.sum(1, keepdims=True) - masses.cumsum(1)
    left = budgets[:, None] - after
    slopes = np.divide(left, weighted, out=np.zeros_like(left), where=weighted > 0)
    # If the bins after j are certain, j itself must not be: c × hardness ≤ 1. Take the largest j.
    fits = (weighted > 0) & (left >= 0) & (slopes * hardness <= 1 + 1e-12)
    last = _BINS - 1 - np.argmax(fits[:, ::-1], axis=1)
    slope = np.where(fits.any(1), slopes[np.arange(len(last)), last], 0.0)
    slope[budgets >= masses.sum(1)] = np.inf
    probabilities: Array = np.minimum(1.0, slope[:, None] * hardness)
    return probabilities


def _present(classes: npt.NDArray[Any], number: int) -> int:
    """How many of the class numbers occur."""
    is_class = np.zeros(number, np.bool_)
    is_class[classes] = True
    return int(np.count_nonzero(is_class))


def _cells(
    samples: Samples, classes: npt.NDArray[Any], number: int, highest: float
) -> tuple[npt.NDArray[np.int32], Array, Array, Array]:
    """The cell of each sample, by class and loss, and each cell's number and cost of samples.

    Also returns the exact sum of each class's losses, because the bins round: late in training
    nearly all losses fall into the first one.
    """
    cells = np.empty(len(samples), np.int32)
    counts, sums = np.zeros(number * _WIDTH), np.zeros(number)
    masses = counts if samples.cost is None else np.zeros_like(counts)
    for start in range(0, len(samples), _BLOCK):
        block = slice(start, start + _BLOCK)
        clipped = np.clip(samples.scores[block], 0, np.float32(highest))
        bins = clipped * np.float32(_BINS / highest)
        clipped[np.isnan(clipped)] = 0
        sums += np.bincount(classes[block], weights=clipped, minlength=number)
        bins = np.nan_to_num(np.clip(bins, 0, _BINS - 1, out=bins), copy=False, nan=_UNSEEN)
        cell = cells[block]
        np.multiply(classes[block], _WIDTH, out=cell, casting="unsafe")
        cell += bins.astype(np.int32)
        counts += np.bincount(cell, minlength=len(counts))
        if samples.cost is not None:
            masses += np.bincount(cell, weights=samples.cost[block], minlength=len(counts))
    shape = (number, _WIDTH)
    return cells, counts.reshape(shape), masses.reshape(shape), sums
