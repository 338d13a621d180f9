"""An arm at a length that can be judged: it has been measured and has not diverged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from infobatch.lab.stats.contrast import FEWEST_SEEDS, Contrast
from infobatch.lab.stats.frontier import Point
from infobatch.lab.stats.saving import Saving

Value = TypeVar("Value")


@dataclass(frozen=True)
class Candidate:
    """A point of the frontier with all of its numbers, and what its intervals establish.

    Nothing is established with fewer than three seeds.
    """

    point: Point
    margin: float
    saved: float
    saving: Saving
    to_full: Contrast
    to_shorter: Contrast
    shorter_to_full: Contrast
    shorter_length: float
    equal_length: float

    @property
    def enough_seeds(self) -> bool:
        """Whether there are enough seeds for any conclusion."""
        return self.to_full.count >= FEWEST_SEEDS

    @property
    def lossless(self) -> bool:
        """Established: worse than full data by less than the margin, if at all."""
        low = self.to_full.low
        return self.enough_seeds and low is not None and low > -self.margin

    @property
    def worse(self) -> bool:
        """Established: worse than full data by more than the margin."""
        high = self.to_full.high
        return self.enough_seeds and high is not None and high < -self.margin

    @property
    def above_curve(self) -> bool:
        """Established: full data needs more compute to be as good."""
        low = self.saving.low
        return self.enough_seeds and low is not None and low > 0

    @property
    def under_curve(self) -> bool:
        """Established: full data is better at the same cost, at which it must have been run."""
        high = self.to_shorter.high
        comparable = self.enough_seeds and not self.point.below_curve
        return comparable and high is not None and high < 0


def candidates(points: Iterable[Point], *, margin: float) -> list[Candidate]:
    """The points that can be judged."""
    return [
        Candidate(
            point=point,
            margin=margin,
            saved=_known(point.saved),
            saving=_known(point.saving),
            to_full=point.to_full,
            to_shorter=_known(point.to_shorter),
            shorter_to_full=_known(point.shorter_to_full),
            shorter_length=_known(point.shorter_length),
            equal_length=_known(point.equal_length),
        )
        for point in points
        if point.to_full is not None  # measured on a common seed, and not diverged
    ]


def _known(value: Value | None) -> Value:
    assert value is not None
    return value
