"""Keep the samples about which the model is undecided: Dyn-Unc."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.checks import check_count
from infobatch.memory.gathered import DynUnc
from infobatch.memory.tracks import Track
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_ratio
from infobatch.policies.ranking import lowest


@dataclass(frozen=True)
class DynUncPrune(Policy):
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
      it from ``update(losses, extras={"label_probability": …})``.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).
        window: J, the number of visits in a window.
        extras: whether p(label) is reported in ``update(extras=…)`` instead of derived from the
            loss.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> DynUncPrune(0.25)
    DynUncPrune(ratio=0.25, window=10, extras=False)
    """

    ratio: float = 0.25
    window: int = 10
    extras: bool = False
    budget = "own"
    default_delta = 1.0
    shardable = True

    def __post_init__(self) -> None:
        check_ratio("DynUncPrune(ratio=…)", self.ratio)
        check_count(
            "DynUncPrune(window=…)", self.window, "a spread needs at least two visits", least=2
        )

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The uncertainty of each sample."""
        return (DynUnc(self.window, "label_probability" if self.extras else None),)

    @property
    def first_epoch(self) -> int:
        """The first epoch in which a window is full."""
        return self.window

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples that are left out, 2 for ties with the last one kept."""
        share = self.ratio if samples.target is None else samples.target
        values = samples["dyn_unc"]
        cut = lowest(values, share, cost=samples.cost, total=samples.sum)
        return Strata(cut.labels(values), cut.keep(), weights="ones", thresholds=cut.thresholds)
