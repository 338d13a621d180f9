"""Prune as much as a given increase of the gradient noise allows."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.memory.tracks import Track
from infobatch.plan import Strata
from infobatch.policies.base import Gradient, Policy, Samples
from infobatch.policies.checks import check_number
from infobatch.policies.gradient import check_label_smoothing, sizing_of
from infobatch.policies.importance import (
    check_proportional,
    histogram_of,
    largest_slope,
    tracks_of_sizes,
)
from infobatch.policies.levels import Array


@dataclass(frozen=True)
class NoisePrune(Policy):
    """Leave out as many samples as add at most ``tau`` to the noise of the gradient.

    Over an epoch of SGD the noise is Σ g², where g is the size of a sample's gradient; keeping samples
    with probability p and weight 1/p makes it Σ g²/p. This rule keeps p = min(1, max(floor, c · g)), as
    :class:`~infobatch.policies.importance.ImportancePrune` does, with the c for which

        Σ g²/p / Σ g² − 1 = tau.

    So ``tau=0.1`` means "no more noise than with batches of a size divided by 1.1". Savings are
    automatically large on data that is mostly learned and small on hard data, which a fixed ratio
    cannot achieve.

    * Unbiased, even if the scores are poor: a wrong g only makes the noise differ from ``tau``. For
      the g that it has, rounding to strata and whole samples adds at most about 5% of ``tau``.
    * Remembers the last loss and its moving average: 8 bytes per sample, 4 without ``smoothing``, 4 more
      with ``aging`` and where a scoring function reports the sizes. One count of the scores by bins, no sort; 254 levels of p.
    * Our own rule. VCAS (ICLR 2024) also bounds the added variance, within the backward pass of a batch.
      It takes no budget (``save=``): what it saves follows from ``tau`` and the losses.

    Args:
        tau: the noise that pruning may add, relative to that of full-data training.
        floor: the smallest probability of being kept, whose inverse is the largest weight.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.
        aging: the share by which g grows with each epoch since the last visit.
        gradient: how g follows from the score: ``"cross_entropy"``, ``"root"`` (a squared error) or
            ``"score"`` (the score is g). Losses of :mod:`infobatch.scoring` need no setting: with
            ``"cross_entropy"`` the sizes that they report are used wherever they know better.
        label_smoothing: of the cross-entropies, if plain losses are passed to ``update``.
        num_classes: the number of classes, which ``label_smoothing`` needs.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> NoisePrune(tau=0.2)
    NoisePrune(tau=0.2, floor=0.25, smoothing=0.7, aging=0.0, gradient='cross_entropy', label_smoothing=0.0, num_classes=None)
    """

    tau: float = 0.1
    floor: float = 0.25
    smoothing: float = 0.7
    aging: float = 0.0
    gradient: Gradient = "cross_entropy"
    label_smoothing: float = 0.0
    num_classes: int | None = None
    budget = "none"
    shardable = True

    def __post_init__(self) -> None:
        why = "the noise that pruning may add, relative to that of full-data training"
        rule = type(self).__name__
        check_number(f"{rule}(tau=…)", self.tau, why, least=0)
        check_proportional(rule, self.floor, self.smoothing, self.aging, self.gradient)
        check_label_smoothing(rule, self.label_smoothing, self.num_classes, self.gradient)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The sizes of the gradients, if they are reported, and the last visit, if age counts."""
        return tracks_of_sizes(self.gradient, self.smoothing, self.aging)

    def strata(self, samples: Samples) -> Strata:
        """Group the samples by their probabilities."""
        histogram = histogram_of(samples, sizing_of(self), self.aging)
        allowed = self.tau * float(histogram.squares.sum())

        def adds_enough(keep: Array) -> bool:
            return float((1 / keep - 1) @ histogram.squares) >= allowed

        slope = largest_slope(histogram, self.floor, adds_enough)
        return histogram.strata(slope, self.floor, histogram.squares)
