"""The noise that pruning really added to an epoch's gradients, by the losses of the epoch itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.plan import FloatArray, Plan
from infobatch.policies.gradient import Sizing, Sums, gradient_size
from infobatch.policies.planning import Planner
from infobatch.savings import EpochPasses

_BLOCK = 1 << 16  # samples at a time, so that temporaries stay in the CPU cache
_ENOUGH = 1 << 18  # samples of each rank: enough for two digits of the noise
_SEVERAL = 5  # epochs in a row: a single one may be chance
_FAR = 0.1  # of the gradient noise


def sums_of(
    plan: Plan, losses: FloatArray, sizing: Sizing, *, at: npt.NDArray[Any] | None = None
) -> Sums:
    """The sums of which the realised noise is the ratio, over the samples that a plan visits.

    ``losses`` are one per row of the memory, or one for each code in ``at``; those that are not
    finite add to neither sum. A plan's order is random, so its first samples stand for all of them.
    """
    total = np.zeros(2)
    all_codes = (plan.codes if at is None else at)[:_ENOUGH]
    for start in range(0, len(all_codes), _BLOCK):
        codes = all_codes[start : start + _BLOCK]
        if at is None:
            visited = losses[plan.rows(codes)]
        else:
            visited = losses[start : start + _BLOCK]
            codes = codes[: len(visited)]
        sizes = gradient_size(visited, sizing)
        sizes[~np.isfinite(visited)] = 0
        total += noise_sums(plan.class_weights[plan.classes(codes)], sizes)
    return total


def noise_sums(weights: Sums, sizes: FloatArray) -> Sums:
    """Σ w² g² and Σ w g² of visited samples; sums of disjoint parts add up.

    >>> noise_sums(np.array([1.0, 2.0]), np.array([3.0, 1.0], np.float32))
    array([13., 11.])
    """
    squares = np.square(sizes, dtype=np.float64) * weights
    return np.array([(squares * weights).sum(), squares.sum()])  # equal if every weight is 1


def realised_noise(sums: Sums) -> float | None:
    """The noise that pruning really added, from all of ``noise_sums``; None if no gradient is known."""
    weighted, total = sums.tolist()
    return weighted / total - 1 if total > 0 else None


def warn_of_noise(planner: Planner, history: Sequence[EpochPasses]) -> bool:
    """Warn if pruning adds far more noise than a rule that limits it promises; return whether it did.

    Only for rules that limit the noise: the others promise nothing, and what they add is recorded.
    """
    last = [epoch for epoch in history if epoch.planned < epoch.full][-_SEVERAL:]
    limits = planner.policy.gradient is not None or planner.options.max_noise is not None
    if not limits or len(last) < _SEVERAL or not all(map(_is_far_above, last)):
        return False
    promised = np.mean([epoch.added_noise for epoch in last])
    realised = np.mean([epoch.realised_noise for epoch in last])
    warnings.warn(
        f"{planner.policy!r} adds more noise than it promises: {realised:.2f} of the gradient noise in epochs "
        f"{last[0].epoch} to {last[-1].epoch}, by the losses of these epochs, where {promised:.2f} was expected "
        "from earlier ones. The scores do not predict the gradients, so that pruning costs more than it "
        "seems; print(train_data.forecast()) says what is left of the saving. Smooth the scores more "
        '(smoothing=0.9), check that gradient= says what they are, or train with policy="none" and '
        'shadow=("auto", "mean") to compare rules before pruning.',
        stacklevel=2,
    )
    return True


def _is_far_above(epoch: EpochPasses) -> bool:
    realised, promised = epoch.realised_noise, epoch.added_noise
    return realised is not None and realised > 2 * promised and realised - promised > _FAR
