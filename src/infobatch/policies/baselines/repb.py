"""Weights that make up for the past: a sample also counts for the epochs that it missed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import Visits
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_ratio, check_smoothing
from infobatch.policies.levels import look_up
from infobatch.policies.mean import mean_score

_MOST_WEIGHTS = 126  # twice as many strata, and one more that a budget may add
_COUNTS = 1 << 16  # the number of uint16 values
_BLOCK = 1 << 17


@dataclass(frozen=True)
class RepbPrune(Policy):
    """Prune a share below the mean loss, and weigh a sample by epochs so far over its visits so far.

    Zhou et al., "Inconsistency Biases in Dynamic Data Pruning" (RePB, ICLR 2026): keep a sample if its
    loss is at least the mean or with probability 1 − ρ (``ratio``), so that samples left out
    return; a kept sample weighs E / N, the number of epochs over the number of its visits, both
    including the current one.

    * Biased in each epoch, and at best asymptotically unbiased over a run, because the mean of 1/N
      is not 1 over the mean of N (as its reviewers objected). The mean rule's weights are exact.
    * Remembers the number of visits: 6 bytes per sample with the last loss, 10 with ``smoothing``. One
      count of the visits per epoch, no sort.
    * Our reading, from the abstract and notes on the paper: it compares losses within a window of a
      few batches, so that all come from nearly the same model; here the window is the epoch, as for
      every other rule. Annealing is InfoBatch's. Where there are more than 126 different counts,
      neighbouring ones share their mean weight.

    Args:
        ratio: ρ, the share of the samples below the mean to leave out, in [0, 1).
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> RepbPrune(0.7)
    RepbPrune(ratio=0.7, smoothing=0.0)
    """

    ratio: float = 0.5
    smoothing: float = 0.0
    shardable = True
    tracks = (Visits(),)

    def __post_init__(self) -> None:
        check_ratio("RepbPrune(ratio=…)", self.ratio)
        check_smoothing("RepbPrune(smoothing=…)", self.smoothing)

    def strata(self, samples: Samples) -> Strata:
        """Two labels for each weight: one for kept samples, one for those that may be pruned."""
        visits, mean = samples["visits"], mean_score(samples)
        table, weights = _weights(samples.sum(_counts(visits)), samples.epoch + 1)
        labels = look_up(table, visits)
        labels += np.uint8(len(weights)) * (samples.scores < np.float32(mean)).view(np.uint8)
        keep = (1.0,) * len(weights) + (1 - self.ratio,) * len(weights)
        reported = (mean,) if np.isfinite(mean) else ()
        return Strata(labels, keep, weights + weights, reported)


def _counts(visits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    """How many samples have each number of visits."""
    counts = np.zeros(_COUNTS)
    for start in range(0, len(visits), _BLOCK):
        counts += np.bincount(visits[start : start + _BLOCK], minlength=_COUNTS)
    return counts


def _weights(
    counts: npt.NDArray[np.float64], epochs: int
) -> tuple[npt.NDArray[np.uint8], tuple[float, ...]]:
    """The label of each number of visits, counted from 1, and the weight of each label."""
    present = np.flatnonzero(counts)
    group = np.arange(len(present)) * min(_MOST_WEIGHTS, len(present)) // len(present)
    sums = np.bincount(group, weights=counts[present] * epochs / (present + 1))
    means = sums / np.bincount(group, weights=counts[present])
    table = np.zeros(_COUNTS, np.uint8)
    table[present] = 1 + group
    return table, tuple(means.tolist())
