"""Estimates of gradient sizes from scores, and of the noise that pruning adds.

If sample i is kept with probability p and weight w, its contribution to an epoch's gradient
deviates from g by g² (p w² − 2 p w + 1) in mean square; with w = 1/p that is g² (1/p − 1), which is
noise, and with w = 1 it is g² (1 − p), which is mostly bias. Relative to Σ g², the noise that one
epoch of SGD has anyway, pruning costs:

    added noise = Σ g² (p w² − 2 p w + 1) / Σ g²

That is what a plan promises, from the scores of earlier visits. What it really costs, every epoch
measures for free: with g from this visit's score and the sums over the visited samples only,

    realised noise = Σ w² g² / Σ w g² − 1

The two sums are unbiased estimates of Σ g²/p and Σ g², for any rule with w = 1/p.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, get_args

import numpy as np
import numpy.typing as npt

from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Gradient, Samples

Sums = npt.NDArray[np.float64]
Kind = TypeVar("Kind", bound=np.generic)

_ENOUGH = 1 << 12  # samples for an estimate to a few per cent; more would slow every epoch boundary


def gradient_size(scores: FloatArray, gradient: Gradient) -> FloatArray:
    """A proxy for the size of a gradient; NaN where the score is NaN, never negative.

    ``"cross_entropy"``: the score is a cross-entropy, and 1 − exp(−score) = 1 − p(label) bounds the
    gradient's size with respect to the logits. ``"root"``: the score is a squared error, whose
    gradient grows with its root. ``"score"``: the score itself.
    """
    known = np.maximum(scores, np.float32(0))  # a negative loss cannot be interpreted this way
    if gradient == "cross_entropy":
        # 1 − exp(−x) = 2 t / (1 + t) with t = tanh(x / 2); numpy's expm1 takes much longer.
        known *= np.float32(0.5)
        half: FloatArray = np.tanh(known, out=known)
        half /= half + np.float32(1)
        half += half
        return half
    return np.sqrt(known, out=known) if gradient == "root" else known


def check_gradient(argument: str, gradient: object) -> None:
    """Raise an error for anything but the known proxies."""
    if gradient not in get_args(Gradient):
        raise ValueError(
            f"{argument} got {gradient!r}, expected 'cross_entropy' (the score is a cross-entropy), "
            "'root' (a squared error) or 'score' (the score itself measures the gradient)."
        )


def squares_by_stratum(strata: Strata, samples: Samples, gradient: Gradient) -> Sums:
    """Σ g² of each stratum, estimated from a few thousand samples of each rank."""
    sizes = gradient_size(subsampled(samples.scores), gradient)
    squares = np.square(sizes, dtype=np.float64)
    squares[np.isnan(squares)] = 0
    labels = subsampled(strata.labels)
    sums: Sums = np.bincount(labels, weights=squares, minlength=len(strata.keep) + 1)  # type: ignore[assignment]
    return samples.sum(_step(len(samples)) * sums)


def subsampled(values: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """A few thousand of the values, at equal distances."""
    return values[:: _step(len(values))]


def _step(count: int) -> int:
    return (count // _ENOUGH) | 1  # odd: data often alternates in even periods


def added_noise(strata: Strata, squares: Sums) -> float:
    """The noise that pruning by these strata adds, relative to that of full-data training."""
    total = float(squares.sum())
    if not strata.keep or not total > 0:
        return 0.0
    keep = np.array(strata.keep)
    if strata.weights == "inverse":
        deviation = 1 / keep - 1
    else:
        weights = np.ones(len(keep)) if strata.weights == "ones" else np.array(strata.weights)
        deviation = keep * weights * weights - 2 * keep * weights + 1
    return float(deviation @ squares[1:]) / total


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


def limit_noise(strata: Strata, squares: Sums, bound: float) -> Strata:
    """Prune less, by the same factor in every stratum, until at most ``bound`` is added.

    Weights that the policy has set move towards 1 by the same factor.
    """
    if added_noise(strata, squares) <= bound:
        return strata

    def pruned_by(factor: float) -> Strata:
        weights = strata.weights
        if not isinstance(weights, str):
            weights = tuple(1 + factor * (weight - 1) for weight in weights)
        keep = tuple(1 - factor * (1 - share) for share in strata.keep)
        return replace(strata, keep=keep, weights=weights)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        fits = added_noise(pruned_by(middle), squares) <= bound
        low, high = (middle, high) if fits else (low, middle)
    return pruned_by(low)
