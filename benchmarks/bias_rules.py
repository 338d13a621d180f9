"""Rules between bias and noise: the noise budget with weights or probabilities that are not its own.

Arms such as ``benchmarks/bias_rules.py:FadingBias``, for the studies ``between-fashion`` and
``between-wrong-labels``. Experimental: not shown to save more than ``auto``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.auto import AutoPrune
from infobatch.policies.base import Samples
from infobatch.policies.baselines.epsilon_greedy import EpsilonGreedyPrune
from infobatch.tracks import MovingVariance, Track


def partly_corrected(strata: Strata, power: float) -> Strata:
    """The same strata with weights p^-power: 1, as in biased rules, for 0, and unbiased for 1."""
    if power == 1:
        return strata
    return replace(strata, weights=tuple(share**-power for share in strata.keep))


@dataclass(frozen=True)
class FadingBias(AutoPrune):
    """``auto`` with weights p^-a, where a goes from ``start`` in the first epoch to ``end`` in the last."""

    start: float = 0.0
    end: float = 1.0

    def strata(self, samples: Samples) -> Strata:
        done = samples.epoch / max(samples.num_epochs - 1, 1)
        power = self.start + (self.end - self.start) * done
        return partly_corrected(super().strata(samples), power)


@dataclass(frozen=True)
class GreedyThenAuto(AutoPrune):
    """The biased ``epsilon_greedy`` for the first ``until`` of the epochs, and ``auto`` afterwards."""

    ratio: float = 0.4
    until: float = 0.5

    def strata(self, samples: Samples) -> Strata:
        if samples.epoch < self.until * samples.num_epochs:
            return EpsilonGreedyPrune(self.ratio).strata(samples)
        return super().strata(samples)


@dataclass(frozen=True)
class UpperBoundAuto(AutoPrune):
    """``auto`` with the upper bound of ``ucb`` in place of the average loss; unbiased.

    For losses x, v ← s v + (1 − s)(x − μ)², then μ ← s μ + (1 − s) x, with s the ``smoothing``: a sample is kept
    with a probability in proportion to the size that follows from μ + ``confidence`` · v.
    """

    confidence: float = 1.0

    @property
    def tracks(self) -> tuple[Track, ...]:
        return (MovingVariance(self.smoothing),)

    def strata(self, samples: Samples) -> Strata:
        bounds = samples["moving_variance"] * np.float32(self.confidence) + samples.scores
        return super().strata(replace(samples, scores=bounds))
