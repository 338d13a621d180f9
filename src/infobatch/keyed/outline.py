"""The numbers of a running epoch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.keyed.chance import class_weights
from infobatch.plan.draw import DROPPED
from infobatch.plan.strata import LabelArray, Strata


@dataclass(frozen=True)
class Outline:
    """The numbers of a running epoch, over all ranks: how many keys are known, and planned to be kept.

    ``weights`` are those of each label, None if all are 1.
    """

    epoch: int
    known: int
    planned: int
    weights: npt.NDArray[np.float64] | None
    thresholds: tuple[float, ...]
    added_noise: float
    check: int

    @classmethod
    def of(
        cls, epoch: int, strata: Strata, labels: LabelArray, added_noise: float = 0.0
    ) -> Outline:
        """Count an epoch's labels."""
        weights = class_weights(strata)
        return cls(
            epoch,
            known=len(labels),
            planned=int(np.count_nonzero(labels != DROPPED)),
            weights=None if (weights == 1).all() else weights,
            thresholds=strata.thresholds,
            added_noise=added_noise,
            check=zlib.crc32(labels.data, zlib.crc32(weights.tobytes())),
        )
