"""Random subsets that take turns: every sample is visited equally often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.memory.tracks import Visits
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_ratio
from infobatch.policies.ranking import lowest


@dataclass(frozen=True)
class Rs2Prune(Policy):
    """Keep the samples that were visited least often, chosen at random among equals.

    Okanovic et al., "Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning" (ICLR
    2024), without replacement: shuffle the data once, hand out consecutive slices of the order, and
    shuffle again when it is used up. A random slice of what is left of an order is a random choice
    among the samples that were visited least often, so the visits are all that has to be remembered.

    * Biased, but only in scale: kept samples weigh 1, as published, and all samples are left out
      equally often. With a schedule compressed to the shorter epochs it *is* training for fewer
      epochs.
    * Remembers the number of visits: 6 bytes per sample with the last loss, which it does not use. One
      selection per epoch, no sort.
    * If the rest of an order is shorter than a slice, it comes first in the next epoch, which is
      filled up with other samples, none of them twice. Two public implementations drop it, so that
      with more than half of the data per epoch they amount to plain random pruning.
    * Our reading: the first epoch is whole, as for every rule. A visit without a finite loss does
      not count.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> Rs2Prune(0.9)   # a tenth of the data in each epoch
    Rs2Prune(ratio=0.9)
    """

    ratio: float = 0.5
    budget = "own"
    default_delta = 1.0
    shardable = True
    tracks = (Visits(),)

    def __post_init__(self) -> None:
        check_ratio("Rs2Prune(ratio=…)", self.ratio)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples visited most often, 2 for those among which the draw chooses."""
        share = self.ratio if samples.target is None else samples.target
        often = np.negative(samples["visits"], dtype=np.float32)
        cut = lowest(often, share, cost=samples.cost, total=samples.sum)
        return Strata(cut.labels(often), cut.keep(), weights="ones")
