"""Keep the samples that may still be hard: Raju et al.'s upper confidence bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.memory.tracks import MovingVariance, Track
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_ratio, check_smoothing
from infobatch.policies.ranking import lowest


@dataclass(frozen=True)
class UcbPrune(Policy):
    """Keep the samples whose average loss plus ``confidence`` times its variance is highest.

    Raju et al., "Accelerating Deep Learning with Dynamic Data Pruning" (2021): for each loss x,
    v ← (1 − α) v + α (x − μ)², then μ ← (1 − α) μ + α x; the K samples with the highest μ + c v are
    kept. A sample whose loss varies is therefore visited more often than its average alone would
    imply.

    * Biased: kept samples weigh 1.
    * Remembers μ, v and the last loss: 12 bytes per sample. One selection per epoch, no sort.
    * Our reading: the authors' α, c and period are not public. Here ``smoothing`` is 1 − α, a first
      loss is μ with v = 0, and the samples are chosen again in every epoch.
    * A public re-implementation overwrites μ with the raw loss; this one averages.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).
        confidence: c, how much the variance counts beside the average.
        smoothing: 1 − α, the share of the earlier losses in the average and the variance.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> UcbPrune(0.3)
    UcbPrune(ratio=0.3, confidence=1.0, smoothing=0.8)
    """

    ratio: float = 0.5
    confidence: float = 1.0
    smoothing: float = 0.8
    budget = "own"
    default_delta = 1.0
    shardable = True

    def __post_init__(self) -> None:
        check_ratio("UcbPrune(ratio=…)", self.ratio)
        why = "how much the variance counts beside the average"
        check_number("UcbPrune(confidence=…)", self.confidence, why, least=0)
        check_smoothing("UcbPrune(smoothing=…)", self.smoothing)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The moving average and variance of the losses."""
        return (MovingVariance(self.smoothing),)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples that are left out, 2 for ties with the last one kept."""
        share = self.ratio if samples.target is None else samples.target
        bounds = samples["moving_variance"] * np.float32(self.confidence)
        bounds += samples.scores
        cut = lowest(bounds, share, cost=samples.cost, total=samples.sum)
        return Strata(cut.labels(bounds), cut.keep(), weights="ones", thresholds=cut.thresholds)
