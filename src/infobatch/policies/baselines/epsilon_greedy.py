"""Keep the hardest samples and a few of the others: Raju et al.'s ε-greedy rule."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_ratio, check_smoothing
from infobatch.policies.ranking import lowest


@dataclass(frozen=True)
class EpsilonGreedyPrune(Policy):
    """Keep the samples with the highest average loss, and a share ``epsilon`` at random from the rest.

    Raju et al., "Accelerating Deep Learning with Dynamic Data Pruning" (2021): s ← (1 − α) s + α x for
    each loss x, and of the K samples to keep, (1 − ε) K are those with the highest s and ε K are drawn
    from the rest.

    * Biased: kept samples weigh 1.
    * Remembers s and the last loss: 8 bytes per sample. One selection per epoch, no sort.
    * Our reading: the authors' α, ε and period are not public. Here ``smoothing`` is 1 − α, a first
      loss is its own average, and the samples are chosen again in every epoch. A sample without a
      score is kept in addition to the K.
    * A public re-implementation overwrites s with the raw loss; this one averages.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).
        epsilon: the share of the kept samples that is drawn at random.
        smoothing: 1 − α, the share of the earlier losses in the average.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> EpsilonGreedyPrune(0.3)
    EpsilonGreedyPrune(ratio=0.3, epsilon=0.1, smoothing=0.8)
    """

    ratio: float = 0.5
    epsilon: float = 0.1
    smoothing: float = 0.8
    budget = "own"
    default_delta = 1.0
    shardable = True

    def __post_init__(self) -> None:
        check_ratio("EpsilonGreedyPrune(ratio=…)", self.ratio)
        why = "the share of the kept samples that is drawn at random"
        check_number("EpsilonGreedyPrune(epsilon=…)", self.epsilon, why, least=0, most=1)
        check_smoothing("EpsilonGreedyPrune(smoothing=…)", self.smoothing)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples of which only some are drawn, 2 for ties with the last one kept."""
        kept = 1 - (self.ratio if samples.target is None else samples.target)
        rest = 1 - (1 - self.epsilon) * kept
        cut = lowest(samples.scores, rest, cost=samples.cost, total=samples.sum)
        drawn = self.epsilon * kept / rest if rest else 1.0
        keep = cut.keep(below=min(drawn, 1.0))
        return Strata(cut.labels(samples.scores), keep, weights="ones", thresholds=cut.thresholds)
