"""Rules that were screened and are not shipped: arms such as ``benchmarks/screen_rules.py:SmoothedSizes:tau=0.1``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.gradient import gradient_size
from infobatch.policies.importance import ImportancePrune
from infobatch.policies.mean import MeanPrune
from infobatch.policies.noise import NoisePrune
from infobatch.policies.proportional import Histogram, largest_slope
from infobatch.policies.random import RandomPrune
from infobatch.tracks import Track


@dataclass(frozen=True)
class SizeEma(Track):
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
class SmoothedSizes(Policy):
    """The noise budget with a moving average of 1 − p(label) instead of the loss."""

    tau: float = 0.1
    floor: float = 0.25
    moving: float = 0.7
    squared: bool = False
    shardable = True

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


@dataclass(frozen=True)
class Changing(Policy):
    """A ratio that falls during training (``power`` > 0) or rises (``power`` < 0), the mean kept.

    At a share u of the pruned epochs it is ratio · (1 + power) · (1 − u)^power, at most 0.75; for a
    negative power the same with u and 1 − u exchanged.
    """

    ratio: float = 0.5
    power: float = 1.0
    end: float = 0.875  # the arm's delta
    shardable = True

    def ratio_now(self, samples: Samples) -> float:
        done = min(1.0, samples.epoch / (self.end * samples.num_epochs))
        left = 1 - done if self.power >= 0 else done
        return min(0.75, self.ratio * (1 + abs(self.power)) * left ** abs(self.power))


@dataclass(frozen=True)
class ChangingImportance(Changing):
    floor: float = 0.25
    smoothing: float = 0.7

    def strata(self, samples: Samples) -> Strata:
        rule = ImportancePrune(floor=self.floor, smoothing=self.smoothing)
        return replace(rule, ratio=self.ratio_now(samples)).strata(samples)


@dataclass(frozen=True)
class ChangingMean(Changing):
    smoothing: float = 0.0

    def strata(self, samples: Samples) -> Strata:
        return MeanPrune(ratio=self.ratio_now(samples)).strata(samples)


@dataclass(frozen=True)
class ChangingRandom(Changing):
    def strata(self, samples: Samples) -> Strata:
        return RandomPrune(ratio=self.ratio_now(samples)).strata(samples)


@dataclass(frozen=True)
class PartlyWeighted(NoisePrune):
    """The noise budget with weights p^−power: 1 is unbiased, 0 trains more on what is hard."""

    power: float = 0.5

    def strata(self, samples: Samples) -> Strata:
        exact = super().strata(samples)
        return replace(exact, weights=tuple(share**-self.power for share in exact.keep))
