"""The frontier: how much compute would full data have needed to be as good?

Full data trained for several lengths gives a curve of quality against cost, which is what shorter
training offers for free. An arm is worth using only if it lies above that curve; how far above is
expressed in compute: 1 - (its cost) / (the cost at which full data reaches the same quality).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infobatch.lab.stats.curve import (
    Saving,
    cross,
    cross_beside,
    differences_at_equal_cost,
    differences_at_own_cost,
    fit_curve,
    saving_of_curve,
    saving_of_point,
)
from infobatch.lab.stats.intervals import CONFIDENCE, Estimate, estimate, signed
from infobatch.lab.stats.pairing import Cell, PairedRuns, row_of_full_length
from infobatch.lab.stats.runs import FULL_LENGTH

SHORTEST_POOLED = 0.6  # shorter training costs less than full data's own shortest length


@dataclass(frozen=True)
class Knot:
    """Full data at one length: means over seeds, and the isotonic fit that defines savings.

    ``cost`` is a geometric mean, since costs are compared as ratios. Qualities are in the metric's
    own unit and direction.
    """

    length: float
    cost: float
    quality: float
    fitted: float


@dataclass(frozen=True)
class Point:
    """One arm at one length, against full data; differences are above zero if it is better.

    Everything but the names is None if no seed is shared with a complete curve of full data. If any
    seed is in ``diverged``, its quality is infinitely bad: there is no mean and no difference, and
    the saving is "at most" its saving against the shortest training on full data.
    """

    arm: str
    length: float
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]
    cost: float | None = None
    saved: float | None = None  # 1 - cost / full data's cost, whatever the quality
    quality: float | None = None
    to_full: Estimate | None = None  # to full data at full length
    to_shorter: Estimate | None = None  # to full data at the same cost
    shorter_to_full: Estimate | None = None  # full data at that cost to that at full length
    shorter_length: float | None = None  # the length at which full data costs the same
    below_curve: bool = False  # cheaper than full data's runs: shorter training is worse still
    saving: Saving | None = None  # at equal quality
    equal_length: float | None = None  # the length at which full data is as good


@dataclass(frozen=True)
class Reach:
    """Where an arm's own curve reaches the quality that full data has at full length.

    A length at which the arm diverged on some seed is infinitely bad, and so is every shorter one
    (the curve never falls): they are in ``diverged`` and the curve begins after them.
    """

    arm: str
    seeds: tuple[int, ...]
    diverged: tuple[float, ...]
    full_cost: float | None = None
    saving: Saving | None = None

    @property
    def cost(self) -> float | None:
        """The cost at which full data's final quality is reached; a bound if ``saving.bound``."""
        return None if self.saving is None else self._cost(self.saving.estimate)

    @property
    def cost_interval(self) -> tuple[float | None, float | None]:
        """The interval of that cost, lower end first; None on an open side."""
        if self.saving is None:
            return None, None
        return self._cost(self.saving.high), self._cost(self.saving.low)

    def _cost(self, saving: float | None) -> float | None:
        return None if saving is None or self.full_cost is None else (1 - saving) * self.full_cost


@dataclass(frozen=True)
class Pooled:
    """What an arm saves at equal quality, from all of its lengths from 0.6 to 1 together.

    It is the one saving that fits these lengths best, which a single length shows less precisely.
    Where the arm diverged on a seed, it is None, and the seed is in ``diverged``.
    """

    arm: str
    lengths: tuple[float, ...]
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]
    saving: Saving | None = None
    to_shorter: Estimate | None = None  # to full data at the same costs, averaged over the lengths
    below_curve: bool = (
        False  # on average cheaper than full data's runs: no saving of 0 to compare with
    )


@dataclass(frozen=True)
class SavingDifference:
    """How much more an arm saves at equal quality than another arm, both from their lengths together.

    Shares of the compute of full data: 0.05 if one saves 30% and the other 25%. ``low`` and ``high`` are None
    on an open side of the interval, and with one seed. ``difference`` is None, too, if either arm diverged, or
    full data's curve ends before it reaches its quality.
    """

    arm: str
    seeds: tuple[int, ...]
    confidence: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """In words: ``+5.1 points (−7.4 to +18.3)``."""
        if self.difference is None:
            return "–"
        low, high = (None if end is None else signed(100 * end, 1) for end in (self.low, self.high))
        interval = f" ({low} to {high})" if low and high else f" ({low} or more)" if low else ""
        interval = f" ({high} or less)" if high and not low else interval
        return f"{signed(100 * self.difference, 1)} points{interval}"


@dataclass(frozen=True)
class Frontier:
    """Full data's curve, every other arm and length against it, and every arm's own curve.

    ``left_out_seeds`` and ``left_out_lengths`` are those at which full data itself diverged.
    """

    curve: tuple[Knot, ...]
    points: tuple[Point, ...]
    reaches: tuple[Reach, ...]
    seeds: tuple[int, ...]
    left_out_seeds: tuple[int, ...]
    left_out_lengths: tuple[float, ...]
    confidence: float
    pooled: tuple[Pooled, ...] = ()  # one for each arm; files of earlier versions have none

    @property
    def full_length(self) -> float:
        """Which of full data's lengths an arm must match."""
        lengths = sorted(knot.length for knot in self.curve)
        return lengths[row_of_full_length(lengths)]


def quality_at(curve: Sequence[Knot], cost: float) -> float:
    """Full data's quality at a cost, as used for savings: linear in 1 / cost between lengths.

    Beyond either end it is the quality at that end. A figure draws the curve through such values.
    """
    costs = np.array([knot.cost for knot in curve])
    return float(np.interp(-1 / cost, -1 / costs, [knot.fitted for knot in curve]))


def frontier(runs: PairedRuns, *, confidence: float = CONFIDENCE) -> Frontier:
    """Place every arm and length on the frontier, with intervals over paired seeds.

    ``confidence`` applies to each interval separately; :func:`infobatch.lab.stats.decision.conclude`
    corrects for multiple comparisons.
    """
    arms = dict.fromkeys(arm for arm, _ in runs.cells)
    return Frontier(
        curve=_knots(runs),
        points=tuple(_point(runs, cell, confidence) for cell in runs.cells),
        reaches=tuple(_reach(runs, arm, confidence) for arm in arms),
        seeds=runs.seeds,
        left_out_seeds=runs.left_out_seeds,
        left_out_lengths=runs.left_out_lengths,
        confidence=confidence,
        pooled=pooled_savings(runs, confidence=confidence),
    )


def pooled_savings(runs: PairedRuns, *, confidence: float = CONFIDENCE) -> tuple[Pooled, ...]:
    """What each arm saves from its lengths together; ``confidence`` applies to each separately."""
    arms = dict.fromkeys(arm for arm, _ in runs.cells)
    return tuple(_pooled(runs, arm, confidence) for arm in arms)


def saving_differences(
    runs: PairedRuns, other: str, *, confidence: float = CONFIDENCE
) -> tuple[SavingDifference, ...]:
    """How much more each arm saves than the arm ``other``, on the seeds that both have.

    ``confidence`` applies to each interval separately.
    """
    arms = dict.fromkeys(arm for arm, _ in runs.cells if arm != other)
    return tuple(_saving_difference(runs, arm, other, confidence) for arm in arms)


def _saving_difference(
    runs: PairedRuns, arm: str, other: str, confidence: float
) -> SavingDifference:
    cells, beside = _pooled_cells(runs, arm), _pooled_cells(runs, other)
    pairs = runs.pairs(*cells, *beside)
    unknown = SavingDifference(arm, pairs.seeds, confidence)
    if not cells or not beside or not pairs.seeds or pairs.diverged:
        return unknown
    count = len(cells)
    found = cross_beside(
        fit_curve(pairs.full_cost, pairs.full_quality),
        (pairs.cost[:count], pairs.quality[:count]),
        (pairs.cost[count:], pairs.quality[count:]),
        confidence=confidence,
    )
    if found is None or found[0].beyond:
        return unknown
    crossing, ratio_beside = found
    saving = saving_of_point(crossing, confidence=confidence)
    saved_beside = -math.expm1(-ratio_beside)
    ends = (None if end is None else end - saved_beside for end in (saving.low, saving.high))
    return SavingDifference(arm, pairs.seeds, confidence, saving.estimate - saved_beside, *ends)


def _knots(runs: PairedRuns) -> tuple[Knot, ...]:
    if not runs.seeds:
        return ()
    pairs = runs.pairs()
    curve = fit_curve(pairs.full_cost, pairs.full_quality)
    order = np.argsort(pairs.full_cost.mean(axis=1), kind="stable")
    return tuple(
        Knot(
            length=runs.lengths[row],
            cost=math.exp(curve.cost[place]),
            quality=runs.sign * float(pairs.full_quality[row].mean()),
            fitted=runs.sign * float(curve.quality[place].mean()),
        )
        for place, row in enumerate(order)
    )


def _point(runs: PairedRuns, cell: Cell, confidence: float) -> Point:
    pairs = runs.pairs(cell)
    arm, length = cell
    if not pairs.seeds:
        return Point(arm, length, (), ())
    curve = fit_curve(pairs.full_cost, pairs.full_quality)
    (log_cost,), (quality,) = pairs.cost, pairs.quality
    cost = float(log_cost.mean())
    full_costs, lengths = np.sort(pairs.full_cost.mean(axis=1)), np.log(np.sort(runs.lengths))

    def length_at(log_cost: float) -> float:
        return math.exp(float(np.interp(log_cost, full_costs, lengths)))

    at_own_cost = curve.at(cost)
    diverged = pairs.diverged
    if diverged:
        bound = -math.expm1(cost - float(curve.cost[0]))
        saving = Saving(bound, "at most", None, None, confidence)
        equal_length = None
    else:
        crossing = cross(curve, log_cost, quality, confidence=confidence)
        saving = saving_of_point(crossing, confidence=confidence)
        equal_length = length_at(cost + crossing.estimate)
    return Point(
        arm=arm,
        length=length,
        seeds=pairs.seeds,
        diverged=diverged,
        cost=math.exp(cost),
        saved=-math.expm1(cost - float(pairs.final_cost.mean())),
        quality=None if diverged else runs.sign * float(quality.mean()),
        to_full=None if diverged else estimate(pairs.to_full, confidence=confidence),
        to_shorter=None
        if diverged
        else estimate(differences_at_own_cost(curve, log_cost, quality), confidence=confidence),
        shorter_to_full=estimate(at_own_cost - pairs.final_quality, confidence=confidence),
        shorter_length=length_at(cost),
        below_curve=cost < float(curve.cost[0]),
        saving=saving,
        equal_length=equal_length,
    )


def _pooled(runs: PairedRuns, arm: str, confidence: float) -> Pooled:
    cells = _pooled_cells(runs, arm)
    lengths = tuple(length for _, length in cells)
    pairs = runs.pairs(*cells)
    if not cells or not pairs.seeds or pairs.diverged:
        return Pooled(arm, lengths, pairs.seeds if cells else (), pairs.diverged if cells else ())
    curve = fit_curve(pairs.full_cost, pairs.full_quality)
    crossing = cross(curve, pairs.cost, pairs.quality, confidence=confidence)
    saving = saving_of_point(crossing, confidence=confidence)
    differences = differences_at_equal_cost(curve, pairs.cost, pairs.quality)
    to_shorter = estimate(differences, confidence=confidence)
    below = float(pairs.cost.mean()) < float(curve.cost[0])
    return Pooled(arm, lengths, pairs.seeds, (), saving, to_shorter, below)


def _pooled_cells(runs: PairedRuns, arm: str) -> list[Cell]:
    """The lengths of an arm from which its saving is pooled."""
    cells = (cell for cell in runs.cells if cell[0] == arm)
    return [cell for cell in cells if SHORTEST_POOLED <= cell[1] <= FULL_LENGTH]


def _reach(runs: PairedRuns, arm: str, confidence: float) -> Reach:
    cells = [cell for cell in runs.cells if cell[0] == arm]
    pairs = runs.pairs(*cells)
    if not pairs.seeds:
        return Reach(arm, (), ())
    infinitely_bad = np.flatnonzero(np.isneginf(pairs.quality).any(axis=1))
    first = int(infinitely_bad[-1]) + 1 if len(infinitely_bad) else 0
    final = float(pairs.final_cost.mean())
    if first == len(cells):
        bound = -math.expm1(float(pairs.cost[-1].mean()) - final)
        saving = Saving(bound, "at most", None, None, confidence)
    else:
        curve = fit_curve(pairs.cost[first:], pairs.quality[first:])
        crossing = cross(curve, pairs.final_cost, pairs.final_quality, confidence=confidence)
        saving = saving_of_curve(crossing, confidence=confidence)
    lengths = tuple(length for _, length in cells[:first])
    return Reach(arm, pairs.seeds, lengths, math.exp(final), saving)
