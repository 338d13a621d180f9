"""Keep probabilities proportional to the scores, ``min(1, c * score)``, and unbiased draws.

If the score is the size of a sample's gradient, no other probabilities add less gradient noise for
the same number of kept samples. The functions of arrays run on the host; :func:`priority` runs
wherever the scores are, with shapes that do not depend on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_Array = npt.NDArray[np.float64]


def slope_for_budget(ascending: _Array, kept: float) -> float:
    """The ``c`` for which ``min(1, c * score)`` sums to ``kept``, below the number of positive scores.

    Zero scores are ignored: they add nothing to the sum.

    >>> print(f"{slope_for_budget(np.array([1.0, 2.0, 9.0]), 2.0):.4f}")
    0.3333
    """
    sums = _from_zero(ascending.cumsum())
    certain = np.arange(len(ascending))[::-1]
    # The number kept if each score in turn were the smallest with probability 1; decreasing.
    ratios = np.full(len(ascending), np.inf)
    np.divide(sums[1:], ascending, out=ratios, where=ascending > 0)
    below = int((ratios + certain > kept).sum())  # how many scores have a probability below 1
    return float((kept - (len(ascending) - below)) / sums[below])


def slope_for_noise(ascending: _Array, max_noise: float) -> float:
    """The least ``c`` that adds at most ``max_noise``: ``Σ score²/p <= (1 + max_noise) Σ score²``.

    >>> slope_for_noise(np.array([1.0, 1.0]), 0.25)
    0.8
    """
    sums, squares = _from_zero(ascending.cumsum()), _from_zero((ascending**2).cumsum())
    allowed = (1 + max_noise) * squares[-1]
    if_certain = ascending * sums[1:] + squares[-1] - squares[1:]  # increasing
    below = int((if_certain <= allowed).sum())
    return float(sums[below] / (allowed - squares[-1] + squares[below]))


def _from_zero(sums: _Array) -> _Array:
    return np.concatenate([np.zeros(1), sums])


def systematic(
    probabilities: _Array, order: npt.NDArray[Any], start: float
) -> npt.NDArray[np.bool_]:
    """Draw each sample with its probability; the total is their sum, rounded up or down.

    The probabilities are laid end to end in ``order``, a random permutation; a sample is drawn if
    one of the points 1 − ``start``, 2 − ``start``, … lies on its segment, where ``start`` is
    uniform in [0, 1).
    """
    passed = np.floor(probabilities[order].cumsum() + start)
    drawn = np.empty(len(order), np.bool_)
    drawn[order] = np.diff(passed, prepend=0.0) > 0
    return drawn


def priority(
    sizes: torch.Tensor, uniform: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw exactly ``count`` of more samples in proportion to their sizes, and return their weights.

    Duffield, Lund and Thorup, "Priority sampling for estimation of arbitrary subset sums" (2007): the
    samples with the largest priorities ``size / uniform`` are drawn, where ``uniform`` has a number in
    (0, 1] for each of them. Given the others, a sample is among them with probability
    ``min(1, size / t)``, where t is the largest priority of a sample that is not drawn; the weight is one
    over this probability, so every weighted sum is unbiased. It runs on the device,
    because every shape is known in advance.

    >>> priority(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.5, 0.5]), 2)
    (tensor([2, 1]), tensor([1., 1.]))
    """
    top = (sizes / uniform).topk(count + 1)
    index, threshold = top.indices[:-1], top.values[-1]
    return index, (threshold / sizes[index]).clamp(min=1.0)
