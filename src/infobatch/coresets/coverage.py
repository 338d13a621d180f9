"""Covering all degrees of difficulty: CCS."""

from __future__ import annotations

from typing import Any

import numpy as np

from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, as_floats, check_k

STRATA = 50


def ccs(
    scores: Array, k: int, *, beta: float | None = None, strata: int = STRATA, seed: Any = 0
) -> Indices:
    """CCS: leave out the hardest, then draw as evenly as possible from strata of difficulty.

    Zheng et al., *Coverage-centric Coreset Selection for High Pruning Rates* (ICLR 2023): the share ``beta`` of
    the samples with the highest scores is left out; the range of the others' scores is divided into strata of
    equal width; starting with the smallest stratum, each gets an equal part of the remaining
    budget, or all of its samples if it has fewer. Samples are drawn at random within a stratum.

    Args:
        scores: one per sample from any method, where higher means harder; ``select`` uses EL2N by default.
        k: how many samples to choose.
        beta: the share of the samples that is left out first; by default the authors' for CIFAR-10: 0.3 if at
            least 90% are pruned, 0.2 if at least 80% are, and 0 below that.
        strata: how many strata there are.
        seed: the key of the draw.

    Returns:
        The indices of the chosen samples.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.
    """
    call = "ccs()"
    values = as_floats(call, "scores", scores, ndim=(1,)).double().cpu().numpy()
    count = len(values)
    k = check_k(call, k, count)
    hardest = round(count * (usual_beta(k, count) if beta is None else beta))
    if not 0 <= hardest <= count - k:
        raise ValueError(
            f"{call} got beta={beta} and k={k} of {count} samples, expected a share from 0 to "
            f"{1 - k / count:.3g}: at least k samples must remain."
        )
    if strata < 1:
        raise ValueError(f"{call} got strata={strata}, expected an integer >= 1.")
    rng = np.random.default_rng(seed)
    remaining = np.argsort(values, kind="stable")[: count - hardest]
    members = _in_strata(values, remaining, strata)
    chosen = []
    left = k
    for number, stratum in enumerate(sorted(members, key=len)):
        share = min(len(stratum), left // (len(members) - number))
        chosen.append(rng.permutation(stratum)[:share])
        left -= share
    return np.concatenate(chosen)


def usual_beta(k: int, count: int) -> float:
    """The share of hardest samples to leave out; ``k`` may be a share of ``count``, rounded up."""
    return 0.3 if k <= -(-count // 10) else 0.2 if k <= -(-count // 5) else 0.0


def _in_strata(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], remaining: Indices, strata: int
) -> list[Indices]:
    """The samples of each non-empty stratum."""
    kept = values[remaining]
    low, high = kept.min(), kept.max()
    width = (high - low) / strata or 1.0
    numbers = np.minimum(((kept - low) / width).astype(np.int64), strata - 1)
    return [remaining[numbers == number] for number in np.unique(numbers)]
