"""Prune as much as adds a given share to the gradient's noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from infobatch.memory.tracks import LastVisit, Track
from infobatch.plan import Strata
from infobatch.policies.base import Samples
from infobatch.policies.checks import check_number
from infobatch.policies.gradient import Gradient, gradient_size
from infobatch.policies.importance import Histogram, aged, check_proportional, largest_slope
from infobatch.policies.levels import Array


@dataclass(frozen=True)
class NoisePrune:
    """Leave out as many samples as add at most ``tau`` to the noise of the gradient.

    Over an epoch of SGD the noise is Σ g², where g is the size of a sample's gradient; keeping samples
    with probability p and weight 1/p makes it Σ g²/p. This rule keeps p = min(1, max(floor, c · g)), as
    :class:`~infobatch.policies.importance.ImportancePrune` does, with the c for which

        Σ g²/p / Σ g² − 1 = tau.

    So ``tau=0.1`` means "no more noise than with a batch smaller by a tenth". Data that is mostly
    learned gives large savings by itself and hard data small ones, which a fixed ratio cannot do.
    Our own rule; the idea of holding the added variance is also in VCAS (ICLR 2024), within a batch.

    >>> NoisePrune(tau=0.2)
    NoisePrune(tau=0.2, floor=0.25, smoothing=0.7, aging=0.0, gradient='cross_entropy')
    """

    tau: float = 0.1
    floor: float = 0.25
    smoothing: float = 0.7
    aging: float = 0.0
    gradient: Gradient = "cross_entropy"
    budget: ClassVar[Literal["none"]] = "none"
    shardable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        why = "the noise that pruning may add, relative to that of full-data training"
        check_number("NoisePrune(tau=…)", self.tau, why, least=0)
        check_proportional("NoisePrune", self.floor, self.smoothing, self.aging, self.gradient)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The last visit, where age counts."""
        return (LastVisit(),) if self.aging else ()

    def strata(self, samples: Samples) -> Strata:
        """Group the samples by their probabilities."""
        sizes = gradient_size(samples.scores, self.gradient)
        histogram = Histogram.of(aged(sizes, samples, self.aging), sizes, samples)
        allowed = self.tau * float(histogram.squares.sum())

        def adds_enough(keep: Array) -> bool:
            return float((1 / keep - 1) @ histogram.squares) >= allowed

        return histogram.strata(largest_slope(histogram, self.floor, adds_enough), self.floor)
