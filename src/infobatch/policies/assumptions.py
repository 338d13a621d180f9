"""Whether the scores can be what a rule takes them for: a measure of the gradients' sizes."""

from __future__ import annotations

import numpy as np

from infobatch.policies.base import Gradient, Samples
from infobatch.policies.gradient import gradient_size, subsampled

ROUNDING = 1e-3  # a loss of 0 may be computed as slightly less
SMALL_SPREAD = 0.05  # sizes that differ by less save 0.25% more than random pruning does
_FEW = 32  # samples that say nothing about a spread
_SATURATED = 1 - 1e-6  # sizes of cross-entropies of 14 on average, that is, of other losses
_MEANING = {
    "cross_entropy": "takes the scores for cross-entropies",
    "root": "takes the scores for squared errors",
    "score": "takes the scores themselves for the sizes of the gradients",
}


def check_not_negative(user: str, gradient: Gradient, lowest: float, samples: Samples) -> None:
    """Raise an error if a score is negative; on every rank if it is on one.

    Args:
        user: what depends on the sizes of the gradients: a policy, or ``max_noise=``.
        gradient: how they follow from the scores.
        lowest: this rank's lowest score.
        samples: those of the epoch that is about to begin.

    Raises:
        ValueError: if a score is negative. A sample with a negative loss would have no gradient, as if
            it were learned, and hard and easy samples would be confused.
    """
    negative = lowest < -ROUNDING
    if not samples.sum(np.array([float(negative)]))[0]:
        return
    got = f"a score of {lowest:.4g}" if negative else "a negative score on another rank"
    other = (
        "leave max_noise out."
        if user.startswith("max_noise=")
        else 'use a rule that only compares the scores, such as policy="mean" or "quantile".'
    )
    raise ValueError(
        f"{user} got {got} before epoch {samples.epoch}, expected none below 0: "
        f"gradient={gradient!r} {_MEANING[gradient]}, and a sample with a negative one would count as "
        "learned. Rank by something that grows with the gradient, such as the squared error, "
        'update(losses, scores=…), with a policy that has gradient="root", or gradient="score" for the '
        f"size itself, or {other}"
    )


def equal_sizes(gradient: Gradient, samples: Samples) -> float | None:
    """The spread of the gradients' sizes if it is so small that choosing by them is random.

    The spread is the standard deviation divided by the mean, estimated from a few thousand samples of
    each rank. It grows as easy samples are learned, so a small one says nothing in the first quarter of
    a run, unless every size is at its limit.
    """
    sizes = gradient_size(subsampled(samples.scores), gradient).astype(np.float64)
    sizes = sizes[~np.isnan(sizes)]
    count, total, squares = samples.sum(np.array([len(sizes), sizes.sum(), sizes @ sizes]))
    if count < _FEW or not total > 0:
        return None
    mean = total / count
    spread = float(np.sqrt(max(squares / count - mean**2, 0.0)) / mean)
    late = 4 * samples.epoch >= samples.num_epochs
    saturated = gradient == "cross_entropy" and mean > _SATURATED
    return spread if spread < SMALL_SPREAD and (late or saturated) else None
