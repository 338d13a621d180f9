"""Stop training on a sample when its loss has stopped moving: instance-dependent early stopping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.memory.tracks import Window
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number

_LOSSES = 5  # needed for three second differences
_BLOCK = 1 << 16


@dataclass(frozen=True)
class IesPrune(Policy):
    """Leave out the samples whose loss has settled into a straight line.

    Yuan et al., "Instance-dependent Early Stopping" (IES, ICLR 2025): a sample is mastered, and left
    out, while the mean size of the last three second differences of its loss,
    |x(t) − 2 x(t − 1) + x(t − 2)|, is below ``threshold``: 1e-3 on CIFAR-10, 2e-3 on CIFAR-100.
    Samples left out are forwarded at the epoch's end and return when their loss moves again: call
    :meth:`infobatch.InfoBatch.refresh` (``refreshes``); without it they never return.

    * Biased: kept samples weigh 1. What it saves depends only on the losses, so it takes no budget.
    * Remembers the last five losses: 24 bytes per sample with the score. One pass, no sort.
    * Our reading: the absolute differences are averaged, because signed ones would cancel. Five
      losses are enough for three of them; the published code waits for a sixth. A loss that is not
      finite is skipped, and its neighbours count as consecutive.
    * The published script reports the best test epoch; compare results at the last one.

    Args:
        threshold: the mean size of second differences of the loss below which a sample is left out.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> IesPrune(2e-3)
    IesPrune(threshold=0.002)
    """

    threshold: float = 1e-3
    budget = "none"
    default_delta = 1.0
    first_epoch = _LOSSES
    refreshes = True
    shardable = True
    tracks = (Window(_LOSSES),)

    def __post_init__(self) -> None:
        why = "the mean size of second differences of the loss below which a sample is left out"
        check_number("IesPrune(threshold=…)", self.threshold, why, least=0)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for samples whose loss hardly moves."""
        window = samples["window"]
        mastered = np.empty(len(window), np.uint8)
        for start in range(0, len(window), _BLOCK):
            x = np.ascontiguousarray(
                window[start : start + _BLOCK].T
            )  # numpy is slow on short rows
            moves = np.abs(x[2:] - 2 * x[1:-1] + x[:-2]).mean(axis=0)
            mastered[start : start + _BLOCK] = moves < np.float32(self.threshold)
        return Strata(mastered, (0.0,), weights="ones")
