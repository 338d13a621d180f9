"""The control: prune at random, whatever the scores say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.plan import FloatArray, Strata
from infobatch.policies.ratio import check_ratio
from infobatch.policies.reduce import Reduce, alone


@dataclass(frozen=True)
class RandomPrune:
    """Prune a share ``ratio`` of all samples that were seen, chosen at random.

    With ``rescale=True`` this is the control of the paper's Table 5, which is nearly as good as
    InfoBatch there (80.5 against 80.6 at the same savings): whoever claims that scores help must
    beat it. ``rescale=False`` is the plain "Random*" of Tables 1 and 4, without weights.

    >>> RandomPrune(0.3)
    RandomPrune(ratio=0.3, rescale=True)
    """

    ratio: float = 0.5
    rescale: bool = True

    def __post_init__(self) -> None:
        check_ratio("RandomPrune(ratio=…)", self.ratio)

    def strata(self, scores: FloatArray, reduce: Reduce = alone) -> Strata:
        """Label 1 for every sample that was seen."""
        seen = (~np.isnan(scores)).view(np.uint8)
        return Strata(seen, (self.ratio,), rescale=self.rescale)
