"""The paper's rule, which prunes a random share below the mean score, and its controls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_ratio, check_smoothing


@dataclass(frozen=True)
class MeanPrune(Policy):
    """Prune a share ``ratio`` of the samples whose score is below the mean of all scores.

    Qin et al., "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning" (ICLR 2024),
    Eq. 3: P(z) = r if H(z) < mean(H), else 0; kept samples below the mean weigh 1/(1 − r). What it saves
    depends on the losses: the more skewed they are, the more samples are below the mean.

    The paper's controls: ``side="above"`` prunes the samples above the mean instead (Table 5);
    ``rescale=False`` leaves the weights at 1 (Table 4); ``InfoBatch(delta=1.0)`` turns annealing off
    (also Table 4).

    * Unbiased; biased with ``rescale=False``.
    * Remembers the last loss: 4 bytes per sample, 8 with ``smoothing``. One pass over the scores, no
      sort.
    * Our reading: samples without a score do not count in the mean, and are kept. Equal scores are never
      below their mean, so nothing is pruned before the model has learned something. Exactly the
      share r is pruned, whereas the paper prunes each sample with probability r.

    Args:
        ratio: the share of the samples below the mean to leave out, in [0, 1).
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.
        side: ``"below"`` the mean, or ``"above"`` it for the paper's control.
        rescale: whether kept samples make up for those left out; False is the paper's control.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> MeanPrune(ratio=0.5)
    MeanPrune(ratio=0.5, smoothing=0.0, side='below', rescale=True)
    """

    ratio: float = 0.5
    smoothing: float = 0.0
    side: Literal["below", "above"] = "below"
    rescale: bool = True
    shardable = True

    def __post_init__(self) -> None:
        check_ratio("MeanPrune(ratio=…)", self.ratio)
        check_smoothing("MeanPrune(smoothing=…)", self.smoothing)
        if self.side not in ("below", "above"):
            raise ValueError(
                f"MeanPrune(side=…) got {self.side!r}, expected 'below' (prune samples below the mean, "
                "as the paper does) or 'above' (its control)."
            )

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for the samples below, or above, the mean of the seen samples' scores."""
        mean = mean_score(samples)
        if self.side == "above":
            above = (samples.scores > np.float32(mean)).view(np.uint8)
            reported = (mean,) if np.isfinite(mean) else ()
            strata = Strata(above, (1 - self.ratio,), thresholds=reported)
        else:
            strata = Strata.below(samples.scores, [(mean, self.ratio)])
        return strata if self.rescale else replace(strata, weights="ones")


def mean_score(samples: Samples) -> float:
    """The mean of the known scores over all ranks; minus infinity if none is known."""
    scores = samples.scores
    # float64: a float32 sum of 14 million equal scores is off by more than their spacing.
    total, count = np.sum(scores, dtype=np.float64), len(scores)
    if np.isnan(total):
        seen = scores[~np.isnan(scores)]
        total, count = np.sum(seen, dtype=np.float64), len(seen)
    total, count = samples.sum(np.array([total, count], np.float64))
    return float(total / count) if count else -np.inf


SoftPrune = MeanPrune  # after the paper's term, soft pruning
