"""Keep samples with probability proportional to their gradients: least noise per budget."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.plan import Strata
from infobatch.policies.base import Samples
from infobatch.policies.checks import check_ratio
from infobatch.policies.levels import Array
from infobatch.policies.proportional import ProportionalPolicy, largest_slope


@dataclass(frozen=True)
class ImportancePrune(ProportionalPolicy):
    """Keep a sample with probability p = min(1, max(floor, c · g)), for a given number of samples.

    g stands for the size of the sample's gradient (see ``gradient``), and c is chosen such that a
    share ``ratio`` is left out, or with ``InfoBatch(save=…)``, the share that the budget requires.
    Weights are 1/p, so the expected gradient is that of the full data, and for the number of
    samples kept no other probabilities add less noise (Σ g²/p is smallest for p proportional to g;
    with costs per sample, to g/√cost).

    The scores are stale and noisy, and this rule trusts them more than a threshold does. Hence the
    moving average (``smoothing``), the ``floor``, and ``aging``, the share by which g grows with
    each epoch since the last visit.

    * Unbiased, even if the scores are poor: a wrong g only adds noise.
    * Remembers the last loss and its moving average: 8 bytes per sample, 4 without ``smoothing``, 4 more
      with ``aging`` and where a scoring function reports the sizes. One count of the scores by bins, no
      sort; 254 levels of p.
    * Our variant of importance sampling; see :class:`~infobatch.policies.noise.NoisePrune`. At most
      a share 1 − ``floor`` can be left out, so a budget cannot ask for more.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).
        floor, smoothing, aging, gradient, label_smoothing, num_classes: by name; see
            :class:`~infobatch.policies.proportional.ProportionalPolicy`.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> ImportancePrune(0.4)
    ImportancePrune(floor=0.25, smoothing=0.7, aging=0.0, gradient='cross_entropy', label_smoothing=0.0, num_classes=None, ratio=0.4)
    """

    ratio: float = 0.5
    budget = "own"

    def __post_init__(self) -> None:
        check_ratio("ImportancePrune(ratio=…)", self.ratio)
        super().__post_init__()

    @property
    def most_left_out(self) -> float:
        """The share of an epoch that is left out if every sample is at the floor."""
        return 1 - self.floor

    def strata(self, samples: Samples) -> Strata:
        """Group the samples by their probabilities."""
        target = self.ratio if samples.target is None else samples.target
        histogram = self.histogram(samples)

        def leaves_out_enough(keep: Array) -> bool:
            return float((1 - keep) @ histogram.masses) >= target * histogram.total_mass

        # Samples without a gradient are at the floor for every c: too many of them raise the floor.
        wanted = target * histogram.total_mass
        idle = float(histogram.masses[histogram.values == 0].sum())
        floor = max(self.floor, 1 - wanted / idle) if idle else self.floor
        return histogram.strata(largest_slope(histogram, floor, leaves_out_enough), floor)
