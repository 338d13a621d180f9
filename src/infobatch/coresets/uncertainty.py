"""Uncertainty of a proxy's predictions: the least certain samples first.

Coleman et al., *Selection via Proxy* (ICLR 2020). Published figures from DeepCore need care: its
class-balanced path takes the least certain samples, the other path the most certain ones, and its least
confidence ranks by the largest logit, not by the largest probability.
"""

from __future__ import annotations

import torch

from infobatch.coresets.checks import Array, as_probabilities


def least_confidence(probabilities: Array) -> torch.Tensor:
    """1 − max p: one score per sample.

    Args:
        probabilities: (samples, classes), the softmax outputs of a network.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> least_confidence([[0.5, 0.5], [1.0, 0.0]]).tolist()
    [0.5, 0.0]
    """
    return 1 - as_probabilities("least_confidence()", probabilities).amax(1)


def entropy(probabilities: Array) -> torch.Tensor:
    """−Σ p ln p: one score per sample.

    Args:
        probabilities: (samples, classes), the softmax outputs of a network.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    values = as_probabilities("entropy()", probabilities)
    return -torch.xlogy(values, values).sum(1)


def margin(probabilities: Array) -> torch.Tensor:
    """−(p₁ − p₂), the two largest probabilities: one score per sample.

    Args:
        probabilities: (samples, classes), the softmax outputs of a network.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> margin([[0.75, 0.25], [0.5, 0.5]]).tolist()
    [-0.5, 0.0]
    """
    values = as_probabilities("margin()", probabilities)
    if values.shape[1] < 2:
        raise ValueError("margin() got probabilities of one class, expected two or more.")
    largest = values.topk(2, dim=1).values
    return largest[:, 1] - largest[:, 0]
