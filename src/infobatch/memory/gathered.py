"""Tracks for the coreset methods, recorded during ordinary training.

They follow what the loop reports in ``update(extras=…)``; ``infobatch.coresets.observed(logits,
labels)`` computes all three channels. Each column has the name of the coreset method that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import Columns, Track, moved_on
from infobatch.plan import FloatArray

NEVER_RIGHT = np.iinfo(np.uint16).max
_MOST_WINDOWS = np.uint16(np.iinfo(np.uint16).max)  # a count stays there instead of overflowing


@dataclass(frozen=True)
class Forgetting(Track):
    """``forgetting``: how often a sample was correct at one visit and wrong at the next.

    Follows the channel ``correct``, 1 where the sample was classified correctly. A sample that has
    never been correct has the largest value, 65,535, and so the highest priority.
    """

    channel = "correct"

    def begin(self, scores: FloatArray) -> Columns:
        """Start with samples that have never been correct."""
        return {
            "forgetting": np.full(len(scores), NEVER_RIGHT, np.uint16),
            "was_right": np.zeros(len(scores), bool),
        }

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Count one more event where a correct visit was followed by a wrong one."""
        right = scores > 0.5
        never = old["forgetting"] == NEVER_RIGHT
        before = np.where(never & right, 0, old["forgetting"])
        forgotten = old["was_right"] & ~right & (before < NEVER_RIGHT - 1)
        return {
            "forgetting": (before + forgotten).astype(np.uint16),
            "was_right": right,
        }


@dataclass(frozen=True)
class MeanError(Track):
    """``el2n``: the mean of ‖p − y‖ over a sample's visits, or over its first ``visits``.

    Follows the channel ``el2n``. Early visits rank samples better than late ones, when most errors
    are near 0.

    Args:
        visits: how many of a sample's first visits count.
    """

    visits: int = 10
    channel = "el2n"

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing seen."""
        return {
            "el2n": np.full(len(scores), np.nan, np.float32),
            "el2n_visits": np.zeros(len(scores), np.uint16),
        }

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Add one error, up to ``visits`` of them."""
        open_rows = old["el2n_visits"] < self.visits
        count = old["el2n_visits"] + open_rows.astype(np.uint16)
        before = np.nan_to_num(old["el2n"])
        mean = before + (scores - before) / np.maximum(count, 1)
        return {
            "el2n": np.where(open_rows, mean, old["el2n"]).astype(np.float32),
            "el2n_visits": count,
        }


@dataclass(frozen=True)
class DynUnc(Track):
    """``dyn_unc``: the standard deviation of p(label) in a window of visits, averaged over all windows.

    He et al.'s dynamic uncertainty, for the coreset method and for the policy of that name: NaN until
    a sample has been visited ``window`` times; the standard deviation has the divisor ``window`` − 1.
    Takes 4 × ``window`` + 6 bytes per sample.

    Args:
        window: the number of visits in a window.
        channel: what is followed: ``label_probability``, or with None the scores, which must then be
            cross-entropies, so that p(label) is exp(−score).
    """

    window: int = 10
    channel: str | None = "label_probability"

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing seen."""
        count = len(scores)
        return {
            "label_probability": np.full((count, self.window), np.nan, np.float32),
            "dyn_unc_windows": np.zeros(count, np.uint16),
            "dyn_unc": np.full(count, np.nan, np.float32),
        }

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Add a probability and, where the window is full, a standard deviation."""
        newest = scores if self.channel else _probability(scores)
        probabilities = moved_on(old["label_probability"], newest)
        deviation = _deviation(probabilities)  # NaN where the window is not full
        windows = np.minimum(old["dyn_unc_windows"], _MOST_WINDOWS - 1)
        windows += ~np.isnan(deviation)
        before, divisor = old["dyn_unc"], windows
        if int(windows.min(initial=2)) < 2:  # otherwise none has its first full window
            before = np.where(windows > 1, before, np.float32(0))
            divisor = np.maximum(windows, np.uint16(1))
        deviation -= before
        deviation /= divisor
        deviation += before
        return {
            "label_probability": probabilities,
            "dyn_unc_windows": windows,
            "dyn_unc": deviation,
        }


def _probability(losses: FloatArray) -> FloatArray:
    """exp(−loss), at most 1."""
    exponents = np.negative(losses)
    np.minimum(exponents, np.float32(0), out=exponents)
    return np.exp(exponents, out=exponents)


def _deviation(windows: npt.NDArray[Any]) -> FloatArray:
    """The standard deviation of each row."""
    contrasts, weights = _helmert(windows.shape[1])
    # Products of matrices, which also transpose: numpy is slow on short rows.
    squares = contrasts @ windows.T
    np.square(squares, out=squares)
    deviation: FloatArray = weights @ squares
    return np.sqrt(deviation, out=deviation)


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
