"""Tracks for the coreset methods, recorded during ordinary training.

They follow what the loop reports in ``update(extras=…)``; ``infobatch.coresets.observed(logits,
labels)`` computes all three channels. Each column has the name of the coreset method that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from infobatch.memory.tracks import Columns
from infobatch.plan import FloatArray

NEVER_RIGHT = np.iinfo(np.uint16).max


@dataclass(frozen=True)
class Forgetting:
    """``forgetting``: how often a sample was correct at one visit and wrong at the next.

    Follows the channel ``correct``, 1 where the sample was classified correctly. A sample that has
    never been correct has the largest value, 65,535, and so the highest priority.
    """

    channel: ClassVar[str] = "correct"

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
class MeanError:
    """``el2n``: the mean of ‖p − y‖ over a sample's visits, or over its first ``visits``.

    Follows the channel ``el2n``. Early visits rank samples better than late ones, when most errors
    are near 0.

    Args:
        visits: how many of a sample's first visits count.
    """

    visits: int = 10
    channel: ClassVar[str] = "el2n"

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
class DynUnc:
    """``dyn_unc``: the standard deviation of p_y in a window, averaged over all windows so far.

    Follows the channel ``label_probability``. NaN until a sample has been visited ``window`` times. Takes
    4 × ``window`` bytes per sample.

    Args:
        window: the number of visits in a window.
    """

    window: int = 10
    channel: ClassVar[str] = "label_probability"

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing seen."""
        return {
            "dyn_unc": np.full(len(scores), np.nan, np.float32),
            "dyn_unc_windows": np.zeros(len(scores), np.uint16),
            "label_probability": np.full((len(scores), self.window), np.nan, np.float32),
        }

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Advance the window by one visit."""
        window = np.concatenate([old["label_probability"][:, 1:], scores[:, None]], axis=1)
        spread = window.std(axis=1)  # NaN while the window is not full
        full = ~np.isnan(spread)
        count = old["dyn_unc_windows"] + full.astype(np.uint16)
        before = np.nan_to_num(old["dyn_unc"])
        mean = before + (np.nan_to_num(spread) - before) / np.maximum(count, 1)
        return {
            "dyn_unc": np.where(full, mean, old["dyn_unc"]).astype(np.float32),
            "dyn_unc_windows": count,
            "label_probability": window,
        }
