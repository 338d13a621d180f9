"""Tracks: what a policy can remember about each sample beyond its last score.

A track adds named columns to the memory, one row per sample, and defines how the scores of an epoch
are folded into them. Everything is vectorised, and only the rows of visited samples change. Because
a track itself has no state, checkpoints, multiple ranks and exact resuming need no support from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.per_sample import GRADIENT
from infobatch.plan import FloatArray

Columns = Mapping[str, npt.NDArray[Any]]


class Track(ABC):
    """Columns of the memory and the rule by which they change: derive from it for one of your own.

    A track has no state of its own: everything that it remembers is in its columns.

    >>> class Highest(Track):
    ...     def begin(self, scores):
    ...         return {"highest": scores.copy()}
    ...
    ...     def fold(self, old, scores, epoch):
    ...         return {"highest": np.fmax(old["highest"], scores)}
    """

    channel: str | None = None
    """The name under which the training loop reports the values to follow, in ``update(extras=…)``;
    None follows the scores."""

    optional: bool = False
    """Whether the columns exist only once values are reported under ``channel``."""

    @abstractmethod
    def begin(self, scores: FloatArray) -> Columns:
        """Return the columns before the first epoch.

        Args:
            scores: one per sample, NaN where none is known.

        Returns:
            The columns by name, with one row per sample.
        """

    @abstractmethod
    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Return the new values of the rows that an epoch visited.

        Args:
            old: the values of these rows before the epoch, by column.
            scores: their new scores, or the values of the track's ``channel``.
            epoch: the epoch, from 0.

        Returns:
            The new values of these rows, by column.
        """


@dataclass(frozen=True)
class Ema(Track):
    """``ema``: a moving average of a sample's scores, ``smoothing`` × old + (1 − ``smoothing``) × new.

    Under augmentation the loss of a single visit is mostly noise; the average ranks more reliably.

    Args:
        smoothing: the share of the earlier scores in the average, in [0, 1).
    """

    smoothing: float

    def begin(self, scores: FloatArray) -> Columns:
        """Start from the known scores."""
        return {"ema": scores.copy()}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Update the average; the first score is its own average."""
        average = np.float32(self.smoothing) * old["ema"] + np.float32(1 - self.smoothing) * scores
        if np.isnan(average.min(initial=np.inf)):  # otherwise no sample has its first score
            average = np.where(np.isnan(old["ema"]), scores, average)
        return {"ema": average}


@dataclass(frozen=True)
class MovingVariance(Ema):
    """``ema``, as :class:`Ema` has it, and ``moving_variance`` of a sample's scores.

    With α = 1 − ``smoothing``: variance ← (1 − α) variance + α (score − mean)², then the mean likewise.
    The first score is the mean, with variance 0.

    Args:
        smoothing: the share of the earlier scores in the average, in [0, 1).
    """

    def begin(self, scores: FloatArray) -> Columns:
        """Start from the known scores, with variance 0."""
        nothing = np.float32(0) * scores  # NaN where the score is
        return {"ema": scores.copy(), "moving_variance": nothing}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Update the variance around the old mean first, then the mean."""
        stay, step = np.float32(self.smoothing), np.float32(1 - self.smoothing)
        known = ~np.isnan(old["ema"])
        mean = np.where(known, old["ema"], scores)
        variance = np.where(known, old["moving_variance"], np.float32(0))
        return {
            "ema": stay * mean + step * scores,
            "moving_variance": stay * variance + step * np.square(scores - mean),
        }


@dataclass(frozen=True)
class Welford(Track):
    """``count``, ``mean`` and ``variance`` of all of a sample's scores, by Welford's method.

    ``variance`` is the population's, 0 after one visit.
    """

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing counted."""
        return {
            "count": np.zeros(len(scores), np.uint16),
            "mean": np.zeros(len(scores), np.float32),
            "variance": np.zeros(len(scores), np.float32),
        }

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Add one score per row."""
        count = _one_more(old["count"])
        step = scores - old["mean"]
        mean = old["mean"] + step / count
        variance = old["variance"] + (step * (scores - mean) - old["variance"]) / count
        return {
            "count": count,
            "mean": mean.astype(np.float32),
            "variance": variance.astype(np.float32),
        }


@dataclass(frozen=True)
class Visits(Track):
    """``visits``: the number of epochs in which the sample got a score."""

    def begin(self, scores: FloatArray) -> Columns:
        """Start at 0 in this run."""
        return {"visits": np.zeros(len(scores), np.uint16)}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Add one visit per row."""
        return {"visits": _one_more(old["visits"])}


@dataclass(frozen=True)
class LastVisit(Track):
    """``last_visit``: the epoch of the last visit, −1 before the first; ``Samples.age`` needs it."""

    def begin(self, scores: FloatArray) -> Columns:
        """Start without a visit in this run."""
        return {"last_visit": np.full(len(scores), -1, np.int32)}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Record this epoch for each row."""
        return {"last_visit": np.full(len(scores), epoch, np.int32)}


@dataclass(frozen=True)
class Window(Track):
    """``window``: a sample's last ``length`` scores, the newest last, NaN where there are fewer.

    Takes 4 × ``length`` bytes per sample.

    Args:
        length: how many scores are remembered.
    """

    length: int

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing seen."""
        return {"window": np.full((len(scores), self.length), np.nan, np.float32)}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Replace the oldest score by the new one."""
        return {"window": moved_on(old["window"], scores)}


@dataclass(frozen=True)
class Latest(Track):
    """A column named after ``channel``: the value that ``update(extras=…)`` last reported.

    Args:
        channel: the name among the ``extras``.
    """

    channel: str = field()  # without a default, although the base class has one

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing reported."""
        return {self.channel: np.full(len(scores), np.nan, np.float32)}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Record the values of this epoch."""
        return {self.channel: scores}


@dataclass(frozen=True)
class GradientSizes(Track):
    """``gradient``: a moving average of the sizes of a sample's gradients, if they are reported.

    Scoring functions report them among the ``extras`` of what they return, see
    :class:`infobatch.PerSample`. The average is as in :class:`Ema`.

    Args:
        smoothing: the share of the earlier sizes in the average, in [0, 1).
    """

    smoothing: float
    channel = GRADIENT
    optional = True

    def begin(self, scores: FloatArray) -> Columns:
        """Start with nothing reported."""
        return {GRADIENT: np.full(len(scores), np.nan, np.float32)}

    def fold(self, old: Columns, scores: FloatArray, epoch: int) -> Columns:
        """Update the average; the first size is its own average."""
        return {GRADIENT: Ema(self.smoothing).fold({"ema": old[GRADIENT]}, scores, epoch)["ema"]}


def moved_on(window: npt.NDArray[np.float32], newest: FloatArray) -> npt.NDArray[np.float32]:
    """Shift each row left by one and append its newest number."""
    moved = np.empty(window.shape, np.float32)
    # All at once instead of row by row: the values that spill into the previous row are
    # overwritten.
    moved.reshape(-1)[:-1] = window.reshape(-1)[1:]
    moved[:, -1] = newest
    return moved


def _one_more(counts: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Add 1, saturating at the type's largest number instead of overflowing to 0."""
    return np.minimum(counts, np.iinfo(np.uint16).max - 1) + np.uint16(1)
