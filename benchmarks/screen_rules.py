"""Variants of the noise budget that were screened: arms such as ``benchmarks/screen_rules.py:SmoothedSizes:tau=0.1``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.base import Samples
from infobatch.policies.gradient import gradient_size
from infobatch.policies.importance import Histogram, largest_slope


@dataclass(frozen=True)
class SizeEma:
    """A moving average of the gradient's size, or of its square, instead of the loss."""

    smoothing: float
    squared: bool = False

    def begin(self, scores: np.ndarray) -> dict[str, np.ndarray]:
        return {"size": self._of(scores)}

    def fold(
        self, old: dict[str, np.ndarray], scores: np.ndarray, epoch: int
    ) -> dict[str, np.ndarray]:
        new = self._of(scores)
        average = np.float32(self.smoothing) * old["size"] + np.float32(1 - self.smoothing) * new
        return {"size": np.where(np.isnan(old["size"]), new, average)}

    def _of(self, scores: np.ndarray) -> np.ndarray:
        sizes = gradient_size(scores, "cross_entropy")
        return np.square(sizes) if self.squared else sizes


@dataclass(frozen=True)
class SmoothedSizes:
    """The noise budget with a moving average of 1 − p(label) instead of the loss."""

    tau: float = 0.1
    floor: float = 0.25
    moving: float = 0.7
    squared: bool = False
    shardable: ClassVar[bool] = True

    @property
    def tracks(self) -> tuple[SizeEma, ...]:
        return (SizeEma(self.moving, self.squared),)

    def strata(self, samples: Samples) -> Strata:
        sizes = samples["size"]
        sizes = np.sqrt(sizes) if self.squared else sizes
        histogram = Histogram.of(sizes, sizes, samples)
        allowed = self.tau * float(histogram.squares.sum())

        def adds_enough(keep: np.ndarray) -> bool:
            return float((1 / keep - 1) @ histogram.squares) >= allowed

        return histogram.strata(largest_slope(histogram, self.floor, adds_enough), self.floor)
