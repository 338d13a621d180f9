"""Keep the hardest samples of a random subset: OrderDP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_smoothing
from infobatch.policies.ranking import lowest


@dataclass(frozen=True)
class OrderDpPrune(Policy):
    """Draw a share of the samples at random and keep those of them with the highest losses.

    Jin et al., "OrderDP: A Theoretically Guaranteed Lossless Dynamic Data Pruning Framework" (ICLR
    2026): draw a share ``draw_ratio`` uniformly and keep the share ``keep_ratio`` of it with the highest
    losses. No annealing. The defaults are those of the published code; the paper uses 0.5 and 0.6.

    * Biased: kept samples weigh 1. What the paper proves to be unbiased is the gradient of another
      loss, in which samples count by their rank.
    * Remembers the last loss: 4 bytes per sample, 8 with ``smoothing``. One random number per sample
      and two selections, no sort.
    * Our reading: samples are drawn again in every epoch. With a budget (``save=``), ``keep_ratio`` does
      not change, and as many samples are drawn as fit.

    Args:
        draw_ratio: the share of the samples that is drawn at random.
        keep_ratio: the share of the drawn samples that is kept, those with the highest losses.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> OrderDpPrune(draw_ratio=0.5, keep_ratio=0.6)   # the paper's
    OrderDpPrune(draw_ratio=0.5, keep_ratio=0.6, smoothing=0.0)
    """

    draw_ratio: float = 0.75
    keep_ratio: float = 0.85
    smoothing: float = 0.0
    budget = "own"
    default_delta = 1.0

    def __post_init__(self) -> None:
        why = "the share of the samples that is drawn at random"
        check_number("OrderDpPrune(draw_ratio=…)", self.draw_ratio, why, above=0, most=1)
        why = "the share of the drawn samples that is kept, those with the highest losses"
        check_number("OrderDpPrune(keep_ratio=…)", self.keep_ratio, why, above=0, most=1)
        check_smoothing("OrderDpPrune(smoothing=…)", self.smoothing)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples not drawn and for easy ones among the drawn, 2 for ties."""
        share = 1 - self.draw_ratio * self.keep_ratio if samples.target is None else samples.target
        drawn = min(1.0, (1 - share) / self.keep_ratio)
        chances = samples.rng().random(len(samples), dtype=np.float32)
        left_out = chances < np.float32(lowest(chances, 1 - drawn).value)
        losses = np.where(left_out, np.float32(-np.inf), samples.scores)  # below every loss
        cut = lowest(losses, share, cost=samples.cost)
        return Strata(cut.labels(losses), cut.keep(), weights="ones", thresholds=cut.thresholds)
