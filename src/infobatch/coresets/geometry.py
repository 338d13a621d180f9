"""Covering the space of features: herding, k-center greedy, contextual diversity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, as_floats, as_probabilities, check_k
from infobatch.coresets.vectors import by_columns

ROUNDING = 16  # times the precision of a float: smaller distances are zero
SMALLEST_PROBABILITY = 1e-12  # its logarithm is finite


def herding(features: Array, k: int) -> Indices:
    """Choose so that the mean of the chosen samples stays as near as possible to the mean μ.

    Welling, *Herding Dynamical Weights to Learn* (ICML 2009): after i choices, the next is
    argmin ‖(i + 1) μ − Σ chosen − x‖. DeepCore takes the argmax, so its published figures for
    "herding" are for samples that move the mean away: they are the lowest in the paper's Table 1.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        k: how many samples to choose.

    Returns:
        The indices of the chosen samples, in the order of choice.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    values = as_floats("herding()", "features", features, ndim=(2,))
    k = check_k("herding()", k, len(values))
    # Relative to the mean, the target is 0: the next one has the smallest ‖Σ chosen + x‖.
    values = by_columns(values - values.mean(0))
    costs = values.square().sum(1)
    chosen = np.empty(k, np.int64)
    for position in range(k):
        best = int(costs.argmin())
        chosen[position] = best
        costs += 2 * (values @ values[best].contiguous())
        costs[best] = torch.inf
    return chosen


def k_center(features: Array, k: int, *, first: int | None = None) -> Indices:
    """Repeatedly choose the sample that is farthest from all chosen ones.

    Sener and Savarese, *Active Learning for CNNs: A Core-Set Approach* (ICLR 2018); the greedy
    form, whose largest distance from a sample to a chosen one is at most twice the best possible. Only
    the distance to the nearest chosen sample is kept, whereas DeepCore keeps all k × samples distances.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        k: how many samples to choose.
        first: the sample to start with; by default the one nearest to the mean, so that the choice is
            deterministic.

    Returns:
        The indices of the chosen samples, in the order of choice.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    call = "k_center()"
    values = as_floats(call, "features", features, ndim=(2,))
    k = check_k(call, k, len(values))
    values = by_columns(values - values.mean(0))
    squares = values.square().sum(1)
    start = int(squares.argmin()) if first is None else _check_first(call, first, len(values))

    def distances(center: int) -> torch.Tensor:
        both, row = squares + squares[center], values[center].contiguous()
        return _without_rounding(torch.addmv(both, values, row, alpha=-2), both)

    return _farthest_first(distances, len(values), k, start)


def contextual_diversity(probabilities: Array, k: int, *, first: int | None = None) -> Indices:
    """K-center greedy by the symmetric KL divergence of a proxy's outputs.

    Agarwal et al., *Contextual Diversity for Active Learning* (ECCV 2020), for one output per sample: the
    distance is Σ (p − q)(ln p − ln q).

    Args:
        probabilities: (samples, classes), the softmax outputs of a network.
        k: how many samples to choose.
        first: the sample to start with; by default the one nearest to the mean output, so that the choice is
            deterministic.

    Returns:
        The indices of the chosen samples, in the order of choice.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    call = "contextual_diversity()"
    values = as_probabilities(call, probabilities)
    k = check_k(call, k, len(values))
    values = values.clamp_min(SMALLEST_PROBABILITY)
    logs = values.log()
    entropy = (values * logs).sum(1)
    both = torch.cat([values, logs], dim=1)
    swapped = torch.cat([logs, values], dim=1)
    mean = values.mean(0)
    to_mean = entropy - values @ mean.log() - logs @ mean
    start = int(to_mean.argmin()) if first is None else _check_first(call, first, len(values))

    def divergences(center: int) -> torch.Tensor:
        sums = entropy + entropy[center]
        return _without_rounding(sums - both @ swapped[center], -sums)

    return _farthest_first(divergences, len(values), k, start)


def _without_rounding(distances: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """Set distances within the rounding error of ``terms`` to zero: a copy has distance 0."""
    noise = ROUNDING * torch.finfo(distances.dtype).eps
    return distances.masked_fill_(distances < noise * terms, 0)


def _farthest_first(
    distances: Callable[[int], torch.Tensor], count: int, k: int, start: int
) -> Indices:
    chosen = np.empty(k, np.int64)
    nearest = distances(start)
    for position in range(k):
        if position:
            start = int(nearest.argmax())
            torch.minimum(nearest, distances(start), out=nearest)
        chosen[position] = start
        nearest[start] = -torch.inf
    return chosen


def _check_first(call: str, first: int, count: int) -> int:
    if not 0 <= first < count:
        raise ValueError(f"{call} got first={first}, expected the index of one of {count} samples.")
    return first
