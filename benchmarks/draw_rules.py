"""The mean rule and the noise budget with other draws than the library's, which keeps exactly k of n at random.

Arms such as ``benchmarks/draw_rules.py:IndependentMean``, for the study ``draw-fashion``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.base import Samples
from infobatch.policies.mean import MeanPrune
from infobatch.policies.noise import NoisePrune
from infobatch.tracks import LastVisit


def kept_independently(strata: Strata, samples: Samples) -> Strata:
    """The same strata, but each sample is kept or left out independently of all others, as the paper's Eq. 3 says.

    How many are kept is then random, and an epoch's weights sum to N only on average. The library warns of a
    bias, because it cannot know that the shares themselves were drawn.
    """
    sizes = np.bincount(strata.labels, minlength=len(strata.keep) + 1)[1:]
    kept = samples.rng().binomial(sizes, strata.keep)
    keep = tuple((kept / np.maximum(sizes, 1)).tolist())
    return replace(strata, keep=keep, weights=tuple(1 / share for share in strata.keep))


@dataclass(frozen=True)
class IndependentMean(MeanPrune):
    def strata(self, samples: Samples) -> Strata:
        return kept_independently(super().strata(samples), samples)


@dataclass(frozen=True)
class IndependentNoise(NoisePrune):
    def strata(self, samples: Samples) -> Strata:
        return kept_independently(super().strata(samples), samples)


@dataclass(frozen=True)
class RotatingMean(MeanPrune):
    """Of the samples below the mean, keep those that were left out longest, chosen at random among equals.

    Biased given what was left out before; in the long run all are kept equally often.
    """

    tracks = (LastVisit(),)

    def strata(self, samples: Samples) -> Strata:
        below = np.flatnonzero(super().strata(samples).labels)
        count = max(1, round((1 - self.ratio) * len(below)))
        turn = samples.age[below] + samples.rng().random(len(below))
        labels = np.zeros(len(samples), np.uint8)
        labels[below] = 2
        labels[below[np.argsort(-turn)[:count]]] = 1
        return Strata(labels, keep=(1.0, 0.0), weights=(len(below) / count, 1.0))
