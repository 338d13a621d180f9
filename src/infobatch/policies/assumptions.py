"""Whether the scores can be what a rule takes them for: a measure of the gradients' sizes."""

from __future__ import annotations

import numpy as np

from infobatch.policies.base import Gradient, Policy, Samples
from infobatch.policies.gradient import Smoothed, gradient_size, known_sizes, sizing_of, subsampled

ROUNDING = 1e-3  # a loss of 0 may be computed as slightly less
SMALL_SPREAD = 0.05  # sizes that differ by less save 0.25% more than random pruning does
_FEW = 32  # samples that say nothing about a spread
_SOME = 256  # samples of which one should be nearly learned
_FLOOR = 0.15  # a loss that no sample falls below: p(label) <= 0.86 everywhere
_SATURATED = 1 - 1e-6  # sizes of cross-entropies of 14 on average, that is, of other losses
_MEANING = {
    "cross_entropy": "takes the scores for cross-entropies",
    "root": "takes the scores for squared errors",
    "score": "takes the scores themselves for the sizes of the gradients",
}


class ScoresError(ValueError):
    """A rule that goes by the sizes of gradients got scores that cannot show them."""


def check_not_negative(user: str, gradient: Gradient, lowest: float, samples: Samples) -> None:
    """Raise an error if a score is negative; on every rank if it is on one.

    Args:
        user: what depends on the sizes of the gradients: a policy, or ``max_noise=``.
        gradient: how they follow from the scores.
        lowest: this rank's lowest score.
        samples: those of the epoch that is about to begin.

    Raises:
        ScoresError: if a score is negative. A sample with a negative loss would have no gradient, as if
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
    raise ScoresError(
        f"{user} got {got} before epoch {samples.epoch}, expected none below 0: "
        f"gradient={gradient!r} {_MEANING[gradient]}, and a sample with a negative one would count as "
        "learned. Rank by something that grows with the gradient, such as the squared error, "
        'update(losses, scores=…), with a policy that has gradient="root", or gradient="score" for the '
        f"size itself, or {other}"
    )


def doubt_about_sizes(policy: Policy, samples: Samples) -> str | None:
    """A warning if a rule that goes by the sizes of gradients has nothing to go by; None otherwise.

    Early in a run the losses of all samples are large and alike, so only sizes that are all at their
    limit say something then.
    """
    gradient = sizing_of(policy)
    values, measure = known_sizes(samples, gradient)
    sizes = gradient_size(subsampled(values), measure).astype(np.float64)
    sizes = sizes[~np.isnan(sizes)]
    # A moving average keeps the large losses of the first epochs for long: the last ones count.
    last = samples.scores if samples.columns is None else samples["score"]
    lowest = float(np.fmin.reduce(last, initial=np.inf))
    is_above_floor = lowest > _FLOOR  # on this rank
    sums = samples.sum(
        np.array([len(sizes), sizes.sum(), sizes @ sizes, float(not is_above_floor)])
    )
    count, total, squares, ranks_below = sums
    if count < _FEW or not total > 0:
        return None
    mean = total / count
    spread = float(np.sqrt(max(squares / count - mean**2, 0.0)) / mean)
    is_late = 4 * samples.epoch >= samples.num_epochs
    saturated = measure == "cross_entropy" and mean > _SATURATED
    floor = None
    if gradient == measure == "cross_entropy" and count >= _SOME and not ranks_below:
        floor = lowest
    if spread < SMALL_SPREAD and (is_late or saturated):
        return _at_random(policy, samples, spread)
    return _floor_under(policy, samples, floor) if is_late and floor is not None else None


def _at_random(policy: Policy, samples: Samples, spread: float) -> str:
    gradient = sizing_of(policy)
    if samples.sizes is not None:
        source = "as the scoring function reports them"
    elif isinstance(gradient, Smoothed):
        source = f"as label_smoothing={gradient.label_smoothing} estimates them from the scores"
    else:
        source = f"as gradient={gradient!r} estimates them from the scores"
    return (
        f"{policy!r} leaves samples out practically at random in epoch {samples.epoch}: the "
        f"sizes of their gradients, {source}, differ "
        f"by only {spread:.2%} (standard deviation over mean). If the loss is not a cross-entropy "
        'with one label, pass gradient="root" (a squared error) or gradient="score" (any other '
        "loss, or update(losses, scores=…) with the sizes themselves), or use a function of "
        "infobatch.scoring, which knows them. If it is, this rule has "
        "nothing to choose by here; docs/policies/noise.md says how much it leaves out when."
    )


def _floor_under(policy: Policy, samples: Samples, floor: float) -> str:
    return (
        f"{policy!r} found no loss below {floor:.2f} before epoch {samples.epoch}, as if there were a floor "
        "under them: with label smoothing, soft labels or a mean over many labels no sample's loss falls "
        "to 0, every gradient looks large, and more samples are kept than have to be. Compute the losses with "
        "infobatch.scoring, which knows the sizes of the gradients, for instance "
        "scoring.cross_entropy(logits, targets, label_smoothing=0.1), or name the smoothing: "
        f"{type(policy).__name__}(label_smoothing=0.1, num_classes=1000). If no sample is learned yet, ignore this."
    )
