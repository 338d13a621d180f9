"""Plain training, through the same machinery."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.plan import FloatArray, Strata
from infobatch.policies.reduce import Reduce, alone


@dataclass(frozen=True)
class NoPrune:
    """Keep every sample in every epoch, with weight 1: the full-data baseline.

    >>> NoPrune()
    NoPrune()
    """

    def strata(self, scores: FloatArray, reduce: Reduce = alone) -> Strata:
        """Label 0 throughout."""
        return Strata(np.zeros(len(scores), np.uint8), ())
