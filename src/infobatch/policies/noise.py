"""Prune as much as a given increase of the gradient noise allows."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.plan import Strata
from infobatch.policies.base import Samples
from infobatch.policies.checks import check_number
from infobatch.policies.levels import Array
from infobatch.policies.proportional import ProportionalPolicy, largest_slope


@dataclass(frozen=True)
class NoisePrune(ProportionalPolicy):
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
      with ``aging`` and where a scoring function reports the sizes. One count of the scores by bins, no
      sort; 254 levels of p.
    * Our own rule. VCAS (ICLR 2024) also bounds the added variance, within the backward pass of a batch.
      It takes no budget (``save=``): what it saves follows from ``tau`` and the losses.

    Args:
        tau: the noise that pruning may add, relative to that of full-data training.
        floor, smoothing, aging, gradient, label_smoothing, num_classes: by name; see
            :class:`~infobatch.policies.proportional.ProportionalPolicy`.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> NoisePrune(tau=0.2)
    NoisePrune(floor=0.25, smoothing=0.7, aging=0.0, gradient='cross_entropy', label_smoothing=0.0, num_classes=None, tau=0.2)
    """

    tau: float = 0.1
    budget = "none"

    def __post_init__(self) -> None:
        why = "the noise that pruning may add, relative to that of full-data training"
        check_number(f"{type(self).__name__}(tau=…)", self.tau, why, least=0)
        super().__post_init__()

    def strata(self, samples: Samples) -> Strata:
        """Group the samples by their probabilities."""
        histogram = self.histogram(samples)
        allowed = self.tau * float(histogram.squares.sum())

        def adds_enough(keep: Array) -> bool:
            return float((1 / keep - 1) @ histogram.squares) >= allowed

        slope = largest_slope(histogram, self.floor, adds_enough)
        return histogram.strata(slope, self.floor, histogram.squares)
