"""Keep probabilities proportional to the scores, ``min(1, c * score)``, and an exact draw.

If the score is the size of a sample's gradient, no other probabilities add less gradient noise for
the same number of kept samples. Everything stays on the scores' device, without synchronisation.
"""

from __future__ import annotations

import torch


def slope_for_budget(ascending: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The ``c`` for which ``min(1, c * score)`` sums to ``kept``, below the number of positive scores.

    Zero scores are ignored: they add nothing to the sum.

    >>> slope_for_budget(torch.tensor([1.0, 2.0, 9.0]), torch.tensor(2.0))
    tensor(0.3333)
    """
    sums = _from_zero(ascending.cumsum(0))
    certain = len(ascending) - torch.arange(1, len(ascending) + 1, device=ascending.device)
    # The number kept if each score in turn were the smallest with probability 1; decreasing.
    if_certain = (sums[1:] / ascending).where(ascending > 0, torch.inf) + certain
    below = (if_certain > kept).sum()  # how many scores have a probability below 1
    return (kept - (len(ascending) - below)) / sums.take(below)


def slope_for_noise(ascending: torch.Tensor, max_noise: float) -> torch.Tensor:
    """The least ``c`` that adds at most ``max_noise``: ``Σ score²/p <= (1 + max_noise) Σ score²``.

    >>> slope_for_noise(torch.tensor([1.0, 1.0]), 0.25)
    tensor(0.8000)
    """
    sums, squares = _from_zero(ascending.cumsum(0)), _from_zero(ascending.square().cumsum(0))
    allowed = (1 + max_noise) * squares[-1]
    if_certain = ascending * sums[1:] + squares[-1] - squares[1:]  # increasing
    below = (if_certain <= allowed).sum()
    return sums.take(below) / (allowed - squares[-1] + squares.take(below))


def _from_zero(sums: torch.Tensor) -> torch.Tensor:
    return torch.cat([sums.new_zeros(1), sums])


def systematic(probabilities: torch.Tensor, order: torch.Tensor, start: float) -> torch.Tensor:
    """Draw each sample with its probability; the total is their sum, rounded up or down.

    The probabilities are laid end to end in ``order``, a random permutation; a sample is drawn if
    one of the points 1 − ``start``, 2 − ``start``, … lies on its segment, where ``start`` is
    uniform in [0, 1).
    """
    passed = (probabilities[order].cumsum(0) + start).floor()
    drawn = passed > torch.cat([passed.new_zeros(1), passed[:-1]])
    return torch.empty_like(drawn).scatter_(0, order, drawn)
