"""The paper's rule: below the mean score, prune a share at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.plan import FloatArray, Strata
from infobatch.policies.ratio import check_ratio
from infobatch.policies.reduce import Reduce, alone


@dataclass(frozen=True)
class SoftPrune:
    """Prune a share ``ratio`` of the samples whose score is below the mean of all scores.

    Eq. 3 of the paper: P(z) = r if H(z) < mean(H), else 0. Needs one pass over the scores and no
    sort. What it saves depends on the losses: the more skewed they are, the more samples lie below
    the mean. Equal scores are never below it, so nothing is pruned before something was learned.

    >>> SoftPrune(ratio=0.5)
    SoftPrune(ratio=0.5)
    """

    ratio: float = 0.5

    def __post_init__(self) -> None:
        check_ratio("SoftPrune(ratio=…)", self.ratio)

    def strata(self, scores: FloatArray, reduce: Reduce = alone) -> Strata:
        """Label 1 for the samples below the mean of the seen samples' scores."""
        # float64: a float32 sum of 14 million equal scores is off by more than their spacing.
        total, count = np.sum(scores, dtype=np.float64), len(scores)
        if np.isnan(total):
            seen = scores[~np.isnan(scores)]
            total, count = np.sum(seen, dtype=np.float64), len(seen)
        total, count = reduce(np.array([total, count], np.float64))
        mean = total / count if count else -np.inf
        return Strata.below(scores, [(float(mean), self.ratio)])
