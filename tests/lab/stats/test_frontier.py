"""The frontier from measurements: savings, divergence, missing seeds, directions, error texts."""

import dataclasses
import json
import math

import numpy as np
import pytest
from measured import paired, runs_of

from infobatch.lab.stats.frontier import frontier, quality_at, saving_differences
from infobatch.lab.stats.pairing import Measurement

FULL = runs_of("full", {0.5: [80, 82, 84], 1.0: [84, 86, 88]})


def found(*groups, higher_is_better=True):
    return frontier(paired(*groups, higher_is_better=higher_is_better))


def only(*runs, **options):
    (point,) = found(*runs, **options).points
    return point


def test_by_hand():
    # The arm costs 50, as full data at half its length. It is better by 1.9, 2.0, 2.1 where full
    # data rises by 4: saving = way along / 2, with the ends of test_crossing.py.
    result = found(FULL, runs_of("mean", {1.0: [81.9, 84, 86.1]}, cost=50))
    (point,) = result.points
    assert (point.arm, point.length, point.seeds) == ("mean", 1.0, (0, 1, 2))
    assert point.saving.estimate == pytest.approx(0.25)
    assert (point.saving.low, point.saving.high) == pytest.approx((0.218948, 0.281052), abs=1e-6)
    assert point.saving.text == "25% (22–28%)"
    assert (point.cost, point.saved, point.quality) == pytest.approx((50, 0.5, 84))
    assert point.to_full.mean == pytest.approx(-2)
    assert point.to_shorter.mean == pytest.approx(2)
    assert point.to_shorter.low == pytest.approx(2 - 0.248414, abs=1e-6)
    assert point.shorter_to_full.mean == pytest.approx(-4)
    assert point.shorter_length == pytest.approx(0.5)
    assert point.equal_length == pytest.approx(0.5 / 0.75), "at 25% less than what that costs"
    assert [(knot.length, knot.cost, knot.quality) for knot in result.curve] == [
        (0.5, pytest.approx(50), pytest.approx(82)),
        (1.0, pytest.approx(100), pytest.approx(86)),
    ]


def test_lower_is_better_mirrors_it():
    mirrored = [dataclasses.replace(run, quality=-run.quality) for run in FULL]
    point = only(
        mirrored, runs_of("mean", {1.0: [-81.9, -84, -86.1]}, cost=50), higher_is_better=False
    )
    assert point.saving.text == "25% (22–28%)"
    assert point.quality == pytest.approx(-84)
    assert point.to_full.mean == pytest.approx(-2)


def test_bounds():
    better = only(FULL, runs_of("mean", {1.0: [85, 87.1, 89]}, cost=70))
    assert better.saving.bound == "at least"
    assert better.saving.interval == "30% or more"
    assert better.saving.text == "at least 30%"
    perhaps = only(FULL, runs_of("mean", {1.0: [84.1, 86.3, 88]}, cost=70))
    assert perhaps.saving.bound == "at least"
    assert perhaps.saving.low < 0.3, "it may still be worse than the longest training"
    assert perhaps.saving.text.startswith("at least 30% (2")
    worse = only(FULL, runs_of("mean", {1.0: [70, 72.1, 74]}, cost=70))
    assert worse.saving.bound == "at most"
    assert worse.saving.interval == "−40% or less"
    assert worse.saving.text == "at most −40%", "the interval would repeat it"
    cheap = only(FULL, runs_of("mean", {1.0: [84, 86, 88]}, cost=25))
    assert cheap.below_curve
    assert not worse.below_curve


def test_random_pruning_on_the_curve_saves_nothing():
    point = only(FULL, runs_of("random", {0.5: [80.1, 81.9, 84]}))
    assert point.saving.estimate == pytest.approx(0, abs=0.01)
    assert point.saving.low is None, "it may be worse than the shortest training"


def test_a_curve_that_is_not_monotone():
    full = runs_of("full", {0.25: [80] * 3, 0.5: [86] * 3, 0.75: [84] * 3, 1.0: [90] * 3})
    result = found(full, runs_of("mean", {1.0: [84.9, 85, 85.1]}, cost=25))
    assert [knot.fitted for knot in result.curve] == pytest.approx([80, 85, 85, 90])
    assert [knot.quality for knot in result.curve] == pytest.approx([80, 86, 84, 90])
    saving = result.points[0].saving
    assert saving.estimate == pytest.approx(0.5), "the cheap end of the flat stretch"
    assert saving.low < 0.5 < saving.high
    assert saving.high > 1 - 25 / 75, "all of the flat stretch is within the interval"


def test_quality_at_a_cost():
    curve = found(FULL).curve
    values = [quality_at(curve, cost) for cost in (40, 50, 200 / 3, 100, 200)]
    assert values == pytest.approx([82, 82, 84, 86, 86])


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_an_arm_that_diverges_is_infinitely_bad(bad):
    result = found(FULL, runs_of("mean", {0.5: [85, bad, 87], 1.0: [86, 88, 90]}, cost=60))
    half, whole = result.points
    assert half.diverged == (1,)
    assert half.seeds == (0, 1, 2), "not left out"
    assert (half.quality, half.to_full, half.to_shorter) == (None, None, None)
    assert (half.saving.bound, half.saving.interval) == ("at most", "")
    assert half.saving.estimate == pytest.approx(1 - 30 / 50)
    assert whole.diverged == ()
    (reach,) = result.reaches
    assert reach.diverged == (0.5,)
    assert reach.cost == pytest.approx(60), "only the longer length counts"
    json.dumps(dataclasses.asdict(result), allow_nan=False)


def test_an_arm_that_diverges_at_its_longest_never_reaches_full_quality():
    result = found(FULL, runs_of("mean", {0.5: [90, 90, 90], 1.0: [86, None, 90]}, cost=60))
    (reach,) = result.reaches
    assert reach.diverged == (0.5, 1.0)
    assert (reach.saving.bound, reach.saving.estimate) == ("at most", pytest.approx(0.4))


def test_where_full_data_diverges_the_seed_is_left_out_and_named():
    full = [*runs_of("full", {0.5: [80, 82, 84, 80], 1.0: [84, 86, 88, None]})]
    result = found(full, runs_of("mean", {1.0: [81.9, 84, 86.1, None]}, cost=50))
    assert result.left_out_seeds == (3,)
    assert result.points[0].diverged == ()
    assert result.points[0].saving.text == "25% (22–28%)"
    full += runs_of("full", {0.1: [None] * 4})
    result = found(full, runs_of("mean", {1.0: [81.9, 84, 86.1, None]}, cost=50))
    assert (result.left_out_lengths, result.left_out_seeds) == ((0.1,), (3,))
    assert result.points[0].saving.text == "25% (22–28%)"


def test_full_data_that_always_diverges_says_nothing():
    result = found(runs_of("full", {1.0: [None, None]}), runs_of("mean", {1.0: [90, 91]}))
    assert (result.curve, result.seeds, result.left_out_lengths) == ((), (), (1.0,))
    assert result.points[0].saving is None
    assert result.reaches[0].cost is None
    assert result.reaches[0].cost_interval == (None, None)


def test_one_seed_has_a_point_and_no_interval():
    first_seed = [run for run in FULL if run.seed == 1]
    arm = [Measurement("mean", 1.0, 1, 50, 84)]
    point = only(first_seed, arm)
    assert point.saving.text == "25%"
    assert (point.saving.low, point.saving.high, point.to_full.low) == (None, None, None)
    two = only(FULL, [*arm, Measurement("mean", 1.0, 2, 50, 86.01)])
    assert two.saving.low < two.saving.estimate < two.saving.high


def test_saving_to_reach_full_quality():
    # The arm's curve 84, 88 at 30 and 60 passes 86 halfway in 1 / cost: 40. So 60% are saved.
    arm = runs_of("mean", {0.5: [82, 84, 86], 1.0: [86.1, 88, 89.9]}, cost=60)
    (reach,) = found(FULL, arm).reaches
    assert reach.cost == pytest.approx(40)
    assert reach.full_cost == pytest.approx(100)
    assert reach.saving.estimate == pytest.approx(0.6)
    low, high = reach.cost_interval
    assert low < 40 < high
    assert reach.saving.low == pytest.approx(1 - high / 100)
    (never,) = found(FULL, runs_of("mean", {1.0: [80, 82.1, 84]}, cost=60)).reaches
    assert (never.saving.bound, never.cost) == ("at most", pytest.approx(60))
    (always,) = found(FULL, runs_of("mean", {1.0: [90, 92.1, 94]}, cost=60)).reaches
    assert (always.saving.bound, always.cost) == ("at least", pytest.approx(60))


def test_arms_keep_their_order_and_lengths_are_sorted():
    arms = runs_of("b", {1.0: [1], 0.5: [1]}) + runs_of("a", {1.0: [1]})
    points = found(FULL, arms).points
    assert [(point.arm, point.length) for point in points] == [("b", 0.5), ("b", 1.0), ("a", 1.0)]


def test_the_lengths_from_0_6_to_1_are_pooled():
    # At lengths 0.6 and 1 the arm is as good as full data at 4/3 of its cost; 0.4 is not counted.
    full = runs_of("full", {0.5: [80, 82, 84], 1.0: [84, 86, 88]})  # 90 - 400 / cost in the mean
    arm = runs_of("mean", {0.4: [0, 0, 0], 0.6: [80, 82.1, 83.9], 1.0: [83.3, 85.1, 87.2]}, cost=75)
    (pooled,) = found(full, arm).pooled
    assert (pooled.arm, pooled.lengths, pooled.seeds) == ("mean", (0.6, 1.0), (0, 1, 2))
    # 82 and 85.2 against 90 - 400 / (45 r) and 90 - 400 / (75 r).
    r = (400 / 45 + 400 / 75) / (180 - 82 - 85.2)
    assert pooled.saving.estimate == pytest.approx(1 - 1 / r)
    assert pooled.saving.low < pooled.saving.estimate < pooled.saving.high


def test_nothing_is_pooled_where_an_arm_diverged_or_was_not_trained_long_enough():
    full = runs_of("full", {0.5: [80, 82, 84], 1.0: [84, 86, 88]})
    diverged = runs_of("mean", {0.6: [80, None, 84], 1.0: [84, 86, 88]})
    short = runs_of("ucb", {0.5: [80, 82, 84]})
    mean, ucb = found(full, diverged, short).pooled
    assert (mean.saving, mean.diverged) == (None, (1,))
    assert (ucb.saving, ucb.lengths, ucb.seeds) == (None, (), ())


def test_full_data_that_is_trained_for_longer_stays_the_measure_at_full_length():
    longer = runs_of("full", {0.5: [80, 82, 84], 1.0: [84, 86, 88], 2.0: [86, 88.1, 90]})
    arm = runs_of("mean", {1.0: [85, 87, 89.1]}, cost=80)
    result = found(longer, arm)
    (point,) = result.points
    assert point.to_full.mean == pytest.approx(1.03, abs=0.01), "not to twice the epochs"
    assert point.saved == pytest.approx(0.2)
    assert point.saving.bound is None, "the curve goes on"
    assert result.reaches[0].full_cost == pytest.approx(100)
    assert result.full_length == 1.0


# The difference between what two arms save.

MEAN = runs_of("mean", {1.0: [81.9, 84, 86.1]}, cost=50)  # saves 25%
UCB = runs_of("ucb", {1.0: [81.1, 82.8, 85.1]}, cost=50)  # saves 12.5%


def differences(*groups, other="ucb", **options):
    return saving_differences(paired(*groups, **options), other)


def test_a_difference_of_savings_by_hand():
    # Full data's quality is 90 - 400 / cost, less 2, 0, -2: at the cost 50 / u it is 90 - 8 u. The arms are above
    # it by -0.1, 0, 0.1 and 0.1, -0.2, 0.1, so they differ by -0.2, 0.2, 0: sd 0.2, half = 4.302653 * 0.2 / sqrt(3)
    # = 0.496828, and in shares of the compute an eighth of that.
    (row,) = differences(FULL, MEAN, UCB)
    assert (row.arm, row.seeds) == ("mean", (0, 1, 2))
    assert row.difference == pytest.approx(0.125)
    ends = 0.125 - 0.496828 / 8, 0.125 + 0.496828 / 8
    assert (row.low, row.high) == pytest.approx(ends, abs=1e-6)
    assert row.text == "+12.5 points (+6.3 to +18.7)"
    (reverse,) = differences(FULL, MEAN, UCB, other="mean")
    assert (reverse.difference, reverse.low) == pytest.approx((-row.difference, -row.high))


def test_arms_that_move_together_differ_for_certain():
    """Noise that both have leaves no trace, however wide the interval of each saving."""
    noise = np.array([1.5, -1, -0.5])
    twins = [
        runs_of(arm, {1.0: np.array([q, 2 + q, 4 + q]) + noise}, cost=50)
        for arm, q in (("a", 82), ("b", 81))
    ]
    (row,) = differences(FULL, *twins, other="b")
    assert (row.low, row.high) == pytest.approx((row.difference, row.difference))
    assert row.difference == pytest.approx(1 / 8)


def test_differences_that_are_not_known():
    best, worst = (
        runs_of("mean", {1.0: [quality] * 3}, cost=50) for quality in (95, 60)
    )  # beyond an end of the curve
    diverged = runs_of("mean", {1.0: [84, 84, None]}, cost=50)
    elsewhere = runs_of("mean", {0.5: [84, 84, 84]})
    for arm in (best, worst, diverged, elsewhere):
        (row,) = differences(FULL, arm, UCB)
        assert (row.difference, row.low, row.high, row.text) == (None, None, None, "–")
        if arm is not elsewhere:
            (row,) = differences(FULL, arm, UCB, other="mean")
            assert row.text == "–"
    flat = runs_of("full", {0.5: [84] * 3, 1.0: [84] * 3})
    (row,) = differences(flat, runs_of("mean", {1.0: [84.0] * 3}), UCB, other="mean")
    assert row.difference is None


def test_one_seed_and_open_ends_in_words():
    first = [[run for run in runs if not run.seed] for runs in (FULL, MEAN, UCB)]
    (row,) = differences(*first)
    assert row.text == "+10.0 points"
    curve = runs_of("full", {0.5: [78, 80, 82], 1.0: [82, 84, 86]})
    for quality, noise, words in (
        (83, 1, "+25.0 points (−6.1 or more)"),
        (82, 2, "+12.5 points"),
        (80.4, 0.5, "−7.5 points (+8.0 or less)"),
    ):
        qualities = [quality - 2 - noise, quality, quality + 2 + noise]
        arm = runs_of("mean", {1.0: qualities}, cost=50)
        (row,) = differences(curve, arm, runs_of("ucb", {1.0: [79, 81, 83]}, cost=50))
        assert row.text == words


@pytest.mark.parametrize(
    ("saved", "beside"), [((0.58, 0.3), (0.7, 0.2)), ((0.65, 0.0), (0.65, 0.0))]
)
def test_the_interval_of_a_difference_covers_the_truth(saved, beside):
    """By simulation, with noise that the arms share with full data on a seed, and noise of their own."""
    generator, covered, errors = np.random.default_rng(0), 0, []
    arms = {"full": (1, 0), "mean": saved, "ucb": beside}
    for _ in range(200):
        shared = generator.normal(0, 0.3, 5)
        groups = [
            runs_of(
                arm,
                {
                    length: 90
                    - 0.8 * ((1 - saving) / kept / length) ** 1.5
                    + shared
                    + generator.normal(0, 0.1, 5)
                    for length in (0.4, 0.6, 0.8, 1.0)
                },
                cost=100 * kept,
            )
            for arm, (kept, saving) in arms.items()
        ]
        (row,) = differences(*groups)
        truth = saved[1] - beside[1]
        errors.append(row.difference - truth)
        covered += row.low <= truth <= row.high
    assert 0.9 <= covered / 200 <= 0.99
    assert abs(np.mean(errors)) < 0.01
