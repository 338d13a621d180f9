"""Choosing by submodular gain: facility location, graph cut, and CRAIG."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, check_k
from infobatch.coresets.facility import ROUNDING, Similarity, greedy_facility_location
from infobatch.coresets.vectors import Vectors, as_vectors, blocks

Weights = npt.NDArray[np.float32]


def facility_location(vectors: Array | Vectors, k: int) -> Indices:
    """Choose the samples that represent all others best: gain Σ_i max(0, s_ij − max_{chosen} s_i).

    s is the cosine similarity, of last-layer gradients in the paper's tables. Iyer and Bilmes, *Submodular
    Optimization* (NeurIPS 2013); greedy, which reaches 1 − 1/e of the best value, and lazy, which
    gives the same choice. DeepCore's batched gain reads the wrong entries of the matrix, so its
    choices differ.

    Args:
        vectors: (samples, numbers), or what :func:`last_layer_gradients` returns.
        k: how many samples to choose.

    Returns:
        The indices of the chosen samples, in the order of choice.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    values = as_vectors("facility_location()", "vectors", vectors)
    k = check_k("facility_location()", k, len(values))
    return greedy_facility_location(values.unit().inner, len(values), k)


def graph_cut(vectors: Array | Vectors, k: int, *, trade_off: float = 1.0) -> Indices:
    """Choose samples similar to all and unlike the chosen: gain λ Σ_i s_ij − 2 Σ_{i chosen} s_ij.

    s is the cosine similarity, of last-layer gradients in the paper's tables. Needs no
    matrix of similarities: sums of cosines are products with a sum of unit vectors. (A similarity of
    (1 + cos) / 2 gives the same choice.)

    Args:
        vectors: (samples, numbers), or what :func:`last_layer_gradients` returns.
        k: how many samples to choose.
        trade_off: λ.

    Returns:
        The indices of the chosen samples, in the order of choice.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    values = as_vectors("graph_cut()", "vectors", vectors)
    k = check_k("graph_cut()", k, len(values))
    values = values.unit()
    gains = trade_off * values.inner_with_sum()
    chosen = np.empty(k, np.int64)
    for position in range(k):
        best = int(gains.argmax())
        chosen[position] = best
        gains -= 2 * values.inner(torch.tensor([best]))[0]
        gains[best] = -torch.inf
    return chosen


def craig(vectors: Array | Vectors, k: int) -> tuple[Indices, Weights]:
    """CRAIG: weighted samples whose gradients represent all: facility location by −‖g − g'‖.

    Mirzasoleiman et al., *Coresets for Data-efficient Training* (ICML 2020). The weight of a chosen sample is
    the number of samples to which it is nearest, including itself, so that the weights sum to the
    number of samples. In DeepCore the count starts at 1, so its weights sum to samples + k.

    Args:
        vectors: (samples, numbers), or what :func:`last_layer_gradients` returns.
        k: how many samples to choose.

    Returns:
        The indices of the chosen samples, in the order of choice, and their weights.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    values = as_vectors("craig()", "vectors", vectors)
    k = check_k("craig()", k, len(values))
    squares = values.squared_norms()
    noise = ROUNDING * torch.finfo(squares.dtype).eps

    def closeness(rows: torch.Tensor) -> torch.Tensor:
        both = squares[rows][:, None] + squares
        squared = torch.sub(both, values.inner(rows), alpha=2)
        # A sample has distance 0 from itself; the root would amplify rounding errors.
        return squared.masked_fill_(squared < both.mul_(noise), 0).sqrt_().neg_()

    chosen = greedy_facility_location(closeness, len(values), k)
    return chosen, _cluster_sizes(closeness, len(values), chosen)


def _cluster_sizes(closeness: Similarity, count: int, chosen: Indices) -> Weights:
    """How many samples are nearest to each chosen one; a chosen sample counts for itself."""
    nearest = torch.zeros(count, dtype=torch.int64)
    best = torch.full((count,), -torch.inf, dtype=torch.float64)
    for block in blocks(len(chosen)):
        values, places = closeness(torch.from_numpy(chosen)[block]).cpu().max(0)
        nearer = values > best
        nearest[nearer] = places[nearer] + block[0]
        best[nearer] = values[nearer].to(best)
    nearest[torch.from_numpy(chosen)] = torch.arange(len(chosen))  # even if there are duplicates
    return np.bincount(nearest.numpy(), minlength=len(chosen)).astype(np.float32)
