"""Estimates of gradient sizes from scores, and of the noise that pruning adds.

If sample i is kept with probability p and weight w, its contribution to an epoch's gradient
deviates from g by g² (p w² − 2 p w + 1) in mean square; with w = 1/p that is g² (1/p − 1), which is
noise, and with w = 1 it is g² (1 − p), which is mostly bias. Relative to Σ g², the noise that one
epoch of SGD has anyway, pruning costs:

    added noise = Σ g² (p w² − 2 p w + 1) / Σ g²

That is what a plan promises, from the scores of earlier visits. What it really costs, every epoch
measures for free: with g from this visit's score and the sums over the visited samples only,

    realised noise = Σ w² g² / Σ w g² − 1

The two sums are unbiased estimates of Σ g²/p and Σ g², for any rule with w = 1/p. Of a large epoch
they are taken over its first samples, 262,144 of each rank, which are a random part of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from infobatch.checks import check_count
from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Gradient, Policy, Samples
from infobatch.policies.checks import check_number

Sums = npt.NDArray[np.float64]
Kind = TypeVar("Kind", bound=np.generic)

_ENOUGH = 1 << 12  # samples for an estimate to a few per cent; more would slow every epoch boundary


class Smoothed(NamedTuple):
    """The score is a cross-entropy with smoothed labels."""

    label_smoothing: float
    num_classes: int


Sizing = Gradient | Smoothed


def sizing_of(policy: Policy) -> Sizing:
    """How the sizes of gradients follow from a policy's scores; cross-entropies if it does not say."""
    if policy.label_smoothing and policy.num_classes is not None:
        return Smoothed(policy.label_smoothing, policy.num_classes)
    return policy.gradient or "cross_entropy"


def known_sizes(samples: Samples, gradient: Sizing) -> tuple[FloatArray, Sizing]:
    """What sizes are computed from, and how: those that were reported, or else the scores."""
    return (samples.scores, gradient) if samples.sizes is None else (samples.sizes, "score")


def gradient_size(scores: FloatArray, gradient: Sizing) -> FloatArray:
    """A proxy for the size of a gradient; NaN where the score is NaN, never negative.

    ``"cross_entropy"``: the score is a cross-entropy, and 1 − exp(−score) = 1 − p(label) bounds the
    gradient's size with respect to the logits. ``"root"``: the score is a squared error, whose
    gradient grows with its root. ``"score"``: the score itself. :class:`Smoothed`: the label's part
    of softmax minus target, as if all other classes had equal probabilities.
    """
    if isinstance(gradient, Smoothed):
        lowest, excess, sizes = _smoothed_sizes(gradient)
        above = np.maximum(scores - np.float32(lowest), np.float32(0))
        interpolated: FloatArray = np.interp(above, excess, sizes).astype(np.float32)
        return interpolated
    known = np.maximum(scores, np.float32(0))  # a negative loss cannot be interpreted this way
    if gradient == "cross_entropy":
        # 1 − exp(−x) = 2 t / (1 + t) with t = tanh(x / 2); numpy's expm1 takes much longer.
        known *= np.float32(0.5)
        half: FloatArray = np.tanh(known, out=known)
        half /= half + np.float32(1)
        half += half
        return half
    return np.sqrt(known, out=known) if gradient == "root" else known


@lru_cache
def _smoothed_sizes(smoothing: Smoothed) -> tuple[float, Sums, Sums]:
    """The lowest loss, and a table of how far losses exceed it and of the sizes that follow.

    With a = 1 − ε + ε/C at the label and ε/C elsewhere as the target, and a probability p for the label
    with the rest spread evenly, the loss exceeds the target's entropy by KL(a, p) of two outcomes,
    and the gradient with respect to the label's logit is p − a.
    """
    share = smoothing.label_smoothing * (1 - 1 / smoothing.num_classes)  # of all other classes
    label = 1 - share
    lowest = -label * np.log(label) - share * np.log(share / (smoothing.num_classes - 1))
    sizes = label * np.concatenate([[0.0], np.geomspace(1e-4, 1 - 1e-9, 4095)])
    p = label - sizes
    excess = label * np.log(label / p) + share * np.log(share / (1 - p))
    excess[0] = 0.0  # exactly
    return float(lowest), excess, sizes


def check_gradient(argument: str, gradient: object) -> None:
    """Raise an error for anything but the known proxies."""
    if gradient not in get_args(Gradient):
        raise ValueError(
            f"{argument} got {gradient!r}, expected 'cross_entropy' (the score is a cross-entropy), "
            "'root' (a squared error) or 'score' (the score itself measures the gradient)."
        )


def check_label_smoothing(
    rule: str, label_smoothing: object, num_classes: object, gradient: object
) -> None:
    """Raise an error for a smoothing that is none, or that says nothing about the gradient."""
    why = "as in torch.nn.CrossEntropyLoss"
    check_number(f"{rule}(label_smoothing=…)", label_smoothing, why, least=0, most=0.99)
    if not label_smoothing:
        return
    if num_classes is None:
        raise ValueError(
            f"{rule}(label_smoothing={label_smoothing}) got no num_classes, expected the number of classes: "
            "it determines the smallest loss that smoothed labels allow. Pass num_classes=…"
        )
    check_count(f"{rule}(num_classes=…)", num_classes, "a label is one of several classes", least=2)
    if gradient != "cross_entropy":
        raise ValueError(
            f"{rule}(label_smoothing={label_smoothing}) got gradient={gradient!r}, expected 'cross_entropy': "
            "only the size of a cross-entropy's gradient depends on label smoothing. Leave one of them out."
        )


def squares_by_stratum(strata: Strata, samples: Samples, gradient: Sizing) -> Sums:
    """Σ g² of each stratum, estimated from a few thousand samples of each rank."""
    values, gradient = known_sizes(samples, gradient)
    sizes = gradient_size(subsampled(values), gradient)
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
