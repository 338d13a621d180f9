"""A curve of quality against cost: where it reaches the quality of a point, and what that saves.

The interval of that cost inverts a t test, as Fieller's method does for a ratio. At every candidate cost the
point is compared with the curve, seed by seed; the curve is linear between two lengths, so that
each seed gives one difference, and these differences have an ordinary t test. The interval contains
every cost at which the test finds no difference.

Why not the bootstrap: three seeds have only ten distinct resamples. In simulations with known curves
a 95% percentile interval covered the truth in 71, 79 and 90% of all comparisons with 3, 5 and 10
seeds; this one in 95% of them. The t test is exact for as few as two seeds with normal noise, and
if the curve is flat or the point lies beyond its end, the interval automatically becomes open on
that side, whereas a delta method fails. Several points, an arm at several lengths, are tested
together: by the average of their differences, seed by seed, at one ratio of costs for all of them.
That covers as well (``benchmarks/evidence/coverage.py``), and its estimates vary about half as much.

Why the curve is linear in 1 / cost: training curves flatten faster than a logarithm. A chord lies
below such a curve, so that full data would seem to need more than it does, to the advantage of
pruning. For quality that approaches its limit like cost ** -1.5, with lengths 0.2 apart, a chord in
log cost adds up to 0.019 to the saving, and one in 1 / cost 0.007. That is a systematic error,
which no number of seeds makes smaller: if the curve bends faster, for instance if full data stops
gaining between two lengths, it is up to about 0.1, in favour of the arm. The remedy is to add
lengths there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from infobatch.forecast import percent
from infobatch.lab.stats.intervals import Array, t_quantile

Bound = Literal["at least", "at most"]
ROUNDING = 1e-12  # of means of qualities


@dataclass(frozen=True)
class Crossing:
    """The log of (the curve's cost at equal quality / the point's own cost).

    ``low`` and ``high`` are infinite on a side that is open, and None with one seed. ``beyond`` is
    +1 if the point is better than the whole curve, so that ``estimate`` is the curve's end and only
    a lower bound; -1 if it is worse than the whole curve, so that ``estimate`` is an upper bound;
    else 0.
    """

    estimate: float
    low: float | None
    high: float | None
    beyond: int


@dataclass(frozen=True)
class Curve:
    """Quality against log cost: one row per length, cheapest first, and one column per seed.

    ``cost`` has the means over seeds and ``cost_noise`` each seed's deviation from them.
    """

    cost: Array
    cost_noise: Array
    quality: Array

    def at(self, cost: float) -> Array:
        """Each seed's quality at a log cost; beyond an end, the quality at that end."""
        shape = -np.exp(-self.cost)
        return np.array([np.interp(-math.exp(-cost), shape, quality) for quality in self.quality.T])


def fit_curve(log_cost: Array, quality: Array) -> Curve:
    """Fit a curve whose mean over seeds never falls as the cost grows (isotonic regression).

    Neighbouring lengths whose means fall are averaged, in each seed alike, so that the mean of the
    seeds' curves is the isotonic regression of their means.
    """
    means = log_cost.mean(axis=1)
    order = np.argsort(means, kind="stable")
    quality = quality[order]
    pooled = np.concatenate(
        [
            np.broadcast_to(quality[block].mean(axis=0), quality[block].shape)
            for block in _blocks(quality.mean(axis=1))
        ]
    )
    return Curve(means[order], (log_cost - means[:, None])[order], pooled)


def _blocks(values: Array) -> list[slice]:
    """Pool adjacent violators: the runs of neighbours that share one value."""
    blocks: list[tuple[int, int]] = []
    for index in range(len(values)):
        start, stop = index, index + 1
        while blocks and values[slice(*blocks[-1])].mean() > values[start:stop].mean():
            start = blocks.pop()[0]
        blocks.append((start, stop))
    return [slice(*block) for block in blocks]


def cross(curve: Curve, log_cost: Array, quality: Array, *, confidence: float) -> Crossing:
    """Find how much more ``curve`` must cost to reach the quality of a point, or of several.

    A point has one log cost and one quality per seed, and the seeds are those of the curve; several
    points are the rows of the two arrays. Of these, the crossing is the one ratio of costs at which
    the curve is as good on average over the points, and the test compares that average, seed by
    seed. If several costs have the same quality, the lowest is taken: a flat stretch of full data's
    curve must not count as a saving.
    """
    log_cost, quality = np.atleast_2d(log_cost), np.atleast_2d(quality)
    return _crossing(_by_ratio(curve, log_cost, quality), confidence)


def cross_beside(
    curve: Curve,
    points: tuple[Array, Array],
    others: tuple[Array, Array],
    *,
    confidence: float,
) -> tuple[Crossing, float] | None:
    """Find where points cross ``curve``, with the interval that counts for the difference from others' crossing.

    Both are log costs and qualities as :func:`cross` takes them, on the same seeds. Their crossings are
    uncertain together: they share the curve and the seeds. By the slope of the others' differences from the
    curve, which are straight in 1 / cost, each seed's difference at their crossing says by how much it would move
    that crossing; the points' differences are tested less what moves their crossing as far.

    Returns:
        The points' crossing, and the log of the others' own ratio of costs. None if the curve ends before it
        reaches the others' quality, or is flat there.
    """
    parts, beside = _by_ratio(curve, *points), _by_ratio(curve, *others)
    other = _crossing(beside, confidence)
    there = _stretch(beside, other.estimate)
    if other.beyond or not there.slope:
        return None
    moves = there.line_at(other.estimate) / there.slope
    tested = [
        replace(
            part,
            at_left=part.at_left - part.slope * moves,
            at_right=part.at_right - part.slope * moves,
        )
        for part in parts
    ]
    return _crossing(tested, confidence), other.estimate


def _crossing(parts: list[_Segment], confidence: float) -> Crossing:
    """Where the mean of the differences ends to be above zero, and the interval by their t test."""
    start, end = parts[0].left, parts[-1].right
    reached = _first_not_above(parts, reach=0.0)
    if reached is None:
        estimate, beyond = end, 1
    elif reached == start and parts[0].excess(0.0, 0.0) < -ROUNDING:
        estimate, beyond = start, -1
    else:
        estimate, beyond = reached, 0
    count = len(parts[0].at_left)
    if count == 1:
        return Crossing(estimate, None, None, beyond)
    reach = t_quantile(confidence, count) / math.sqrt(count)
    low = _first_not_above(parts, reach=reach)
    # From the other end, what has to be established is that the point is worse.
    high = _first_not_above([part.reversed() for part in reversed(parts)], reach=reach)
    return Crossing(
        estimate,
        -math.inf if low == start else end if low is None else low,
        math.inf if high == end else start if high is None else high,
        beyond,
    )


def _by_ratio(curve: Curve, log_cost: Array, quality: Array) -> list[_Segment]:
    """Points minus curve, averaged over the points, between log ratios of the curve's cost to theirs.

    At each ratio the curve is read at a different cost for each point. Where that is beyond an end
    of the curve, its last stretch is continued, straight in 1 / cost; training curves lie below that
    line, so the saving is not overstated. The ratios end where the points' mean cost meets an end.
    """
    costs = log_cost.mean(axis=1)
    of_points = [_segments(curve, *point) for point in zip(log_cost, quality, strict=True)]
    start, end = curve.cost[[0, -1]] - costs.mean()
    knots = (curve.cost[:, None] - costs).ravel()
    ratios = np.unique(np.concatenate([[start, end], knots[(knots > start) & (knots < end)]]))
    if len(ratios) == 1:
        ratios = np.repeat(ratios, 2)

    def average(ratio: float, inside: float) -> Array:
        """The average at a ratio, by the stretches of the curve that another ratio is inside."""
        values = [
            _stretch(parts, cost + inside).line_at(cost + ratio)
            for parts, cost in zip(of_points, costs, strict=True)
        ]
        average: Array = np.mean(values, axis=0)
        return average

    return [
        _Segment(left, right, average(left, (left + right) / 2), average(right, (left + right) / 2))
        for left, right in pairwise(ratios.tolist())
    ]


def _stretch(segments: list[_Segment], log_cost: float) -> _Segment:
    """The segment that a log cost is in, or the one at that end."""
    return next((part for part in segments if log_cost <= part.right), segments[-1])


def differences_at_own_cost(curve: Curve, log_cost: Array, quality: Array) -> Array:
    """Point minus curve at the point's own cost, one value per seed; beyond an end, at that end."""
    arm_cost = float(log_cost.mean())
    segments = _segments(curve, log_cost, quality)
    segment = _stretch(segments, arm_cost)
    return segment.at(min(max(segment.share(arm_cost), 0.0), 1.0))


def differences_at_equal_cost(curve: Curve, log_cost: Array, quality: Array) -> Array:
    """Points minus curve at each point's own cost, averaged over the points: one value per seed.

    Beyond an end the curve's last stretch is continued, as in :func:`cross`, whose interval contains
    a ratio of 1 if and only if that of these differences contains 0.
    """
    values = []
    for costs, qualities in zip(log_cost, quality, strict=True):
        mean_cost = float(costs.mean())
        values.append(_stretch(_segments(curve, costs, qualities), mean_cost).line_at(mean_cost))
    average: Array = np.mean(values, axis=0)
    return average


@dataclass(frozen=True)
class _Segment:
    """Point minus curve between two neighbouring lengths, one value per seed at either end."""

    left: float
    right: float
    at_left: Array
    at_right: Array

    def reversed(self) -> _Segment:
        return _Segment(self.right, self.left, -self.at_right, -self.at_left)

    @property
    def slope(self) -> float:
        """By how much the mean difference grows with 1 / cost."""
        run = math.exp(-self.left) - math.exp(-self.right)
        return float((self.at_left - self.at_right).mean()) / run if run else 0.0

    def at(self, share: float) -> Array:
        """Each seed's difference at a share of the segment, measured in 1 / cost."""
        return self.at_left + share * (self.at_right - self.at_left)

    def share(self, log_cost: float) -> float:
        """The share of the segment at which a log cost lies: from 0 to 1 if it is inside."""
        start, end = math.exp(-self.left), math.exp(-self.right)
        return 0.0 if start == end else (start - math.exp(-log_cost)) / (start - end)

    def line_at(self, log_cost: float) -> Array:
        """Each seed's difference at a log cost, also beyond the segment."""
        return self.at(self.share(log_cost))

    def log_cost(self, share: float) -> float:
        """The log cost at a share of the segment."""
        return -math.log((1 - share) * math.exp(-self.left) + share * math.exp(-self.right))

    def excess(self, share: float, reach: float) -> float:
        """The mean difference less ``reach`` standard deviations, at a share of the segment.

        A linear function minus a norm is concave: if it is positive on the left, it has at most one
        zero to the right.
        """
        values = self.at(share)
        noise = reach * float(values.std(ddof=1)) if reach else 0.0
        return float(values.mean()) - noise


def _segments(curve: Curve, log_cost: Array, quality: Array) -> list[_Segment]:
    """Divide the curve at its lengths. Costs that vary over seeds enter to first order."""
    own_noise = log_cost - log_cost.mean()
    if len(curve.cost) == 1:
        difference = quality - curve.quality[0]
        return [_Segment(curve.cost[0], curve.cost[0], difference, difference)]
    # With quality linear in 1 / cost, its slope in log cost is proportional to 1 / cost.
    inverse = np.exp(-curve.cost)
    segments = []
    for index in range(len(inverse) - 1):
        rise = float(curve.quality[index + 1].mean() - curve.quality[index].mean())
        run = float(inverse[index] - inverse[index + 1])
        ends = []
        for side in (index, index + 1):
            slope = rise / run * float(inverse[side]) if run else 0.0
            noise = slope * (own_noise - curve.cost_noise[side])
            ends.append(quality - curve.quality[side] - noise)
        segments.append(_Segment(float(curve.cost[index]), float(curve.cost[index + 1]), *ends))
    return segments


def _first_not_above(segments: list[_Segment], *, reach: float) -> float | None:
    """The first cost at which the point is not established to be better; None if nowhere."""
    for segment in segments:
        if segment.excess(0.0, reach) <= 0:
            return segment.left
        if segment.excess(1.0, reach) <= 0:
            from scipy.optimize import brentq  # noqa: PLC0415 - the command line must start quickly

            share = float(brentq(segment.excess, 0.0, 1.0, args=(reach,), xtol=1e-12))
            return segment.log_cost(share)
    return None


# Savings.


@dataclass(frozen=True)
class Saving:
    """The share of compute that is saved; below zero, compute is wasted.

    ``bound`` says that the other curve ends before it reaches that quality, so that ``estimate`` is
    only a bound. ``low`` and ``high`` are None on an open side of the interval, and with one seed.
    """

    estimate: float
    bound: Bound | None
    low: float | None
    high: float | None
    confidence: float

    @property
    def text(self) -> str:
        """In words: ``34% (27–40%)``, ``at least 34% (27% or more)``, ``34%`` with one seed."""
        words = f"{self.bound} " if self.bound else ""
        words += percent(self.estimate)
        interval = self.interval
        # A certain bound needs no interval that repeats it.
        repeated = self.bound and interval.startswith(f"{percent(self.estimate)} or ")
        return f"{words} ({interval})" if interval and not repeated else words

    @property
    def interval(self) -> str:
        """The interval in words; empty if there is none."""
        if self.low is not None and self.high is not None:
            low, high = percent(self.low), percent(self.high)
            return f"{low} to {high}" if low.startswith("−") else f"{low[:-1]}–{high}"
        if self.low is not None:
            return f"{percent(self.low)} or more"
        return "" if self.high is None else f"{percent(self.high)} or less"


def saving_of_point(crossing: Crossing, *, confidence: float) -> Saving:
    """What the point saves against the curve: 1 - its cost / the curve's cost at equal quality."""
    bounds: dict[int, Bound | None] = {1: "at least", -1: "at most", 0: None}
    return Saving(
        _share(-crossing.estimate),
        bounds[crossing.beyond],
        _end(crossing.low, -1),
        _end(crossing.high, -1),
        confidence,
    )


def saving_of_curve(crossing: Crossing, *, confidence: float) -> Saving:
    """What the curve saves against the point: 1 - the curve's cost at equal quality / its cost."""
    bounds: dict[int, Bound | None] = {1: "at most", -1: "at least", 0: None}
    return Saving(
        _share(crossing.estimate),
        bounds[crossing.beyond],
        _end(crossing.high, 1),
        _end(crossing.low, 1),
        confidence,
    )


def _share(log_ratio: float) -> float:
    return -math.expm1(log_ratio)


def _end(log_ratio: float | None, sign: int) -> float | None:
    return None if log_ratio is None or math.isinf(log_ratio) else _share(sign * log_ratio)
