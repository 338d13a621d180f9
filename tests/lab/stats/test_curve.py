"""Where a curve reaches a quality: by hand, at ties, beyond its ends; and its interval by simulation."""

import math

import numpy as np
import pytest

from infobatch.lab.stats.curve import Saving, cross, differences_at_own_cost, fit_curve


def curve_of(costs, *qualities):
    """A curve with the same costs for every seed, and a column of qualities for each seed."""
    quality = np.array(qualities, dtype=float).T
    return fit_curve(np.log(np.array(costs, dtype=float))[:, None] + 0 * quality, quality)


def crossing_of(curve, cost, quality, confidence=0.95):
    quality = np.array(quality, dtype=float)
    return cross(curve, np.full(len(quality), math.log(cost)), quality, confidence=confidence)


def ratio(log_ratio):
    return math.exp(log_ratio)


def test_halfway_in_one_over_cost():
    # (1/100 + 1/200) / 2 = 1/133.3: full data needs a third more than the point's 100.
    crossing = crossing_of(curve_of([100, 200], [82, 86]), 100, [84])
    assert ratio(crossing.estimate) == pytest.approx(4 / 3)
    assert (crossing.low, crossing.high, crossing.beyond) == (None, None, 0)


def test_interval_by_hand():
    # Differences to the cheaper end 1.9, 2.0, 2.1: mean 2, sd 0.1, half = 4.302653 * 0.1 / sqrt(3)
    # = 0.248414. The curve rises by 4 in every seed, so the way along is (2 -+ 0.248414) / 4, and
    # 100 / cost = 1 - way / 2.
    crossing = crossing_of(
        curve_of([100, 200], [80, 84], [82, 86], [84, 88]), 100, [81.9, 84, 86.1]
    )
    assert ratio(crossing.estimate) == pytest.approx(4 / 3)
    assert ratio(crossing.low) == pytest.approx(1 / (1 - 0.437897 / 2), abs=1e-6)
    assert ratio(crossing.high) == pytest.approx(1 / (1 - 0.562103 / 2), abs=1e-6)


def test_seeds_that_move_together_cancel():
    crossing = crossing_of(curve_of([1, 2], [80, 84], [70, 74], [60, 64]), 1, [82, 72, 62])
    assert crossing.low == pytest.approx(crossing.high)
    assert crossing.estimate == pytest.approx(crossing.low)


def test_neighbours_that_fall_are_pooled_in_every_seed():
    curve = curve_of([1, 2, 3, 4], [1, 5, 3, 8], [1, 7, 1, 10])
    # Means 1, 6, 2, 9: the two in the middle become 4, seed by seed (5 + 3) / 2 and (7 + 1) / 2.
    assert curve.quality.T.tolist() == [[1, 4, 4, 8], [1, 4, 4, 10]]
    falling = curve_of([1, 2, 3], [3, 2, 1])
    assert falling.quality.ravel().tolist() == [2, 2, 2]


def test_lengths_are_ordered_by_cost():
    assert curve_of([4, 1, 2], [9, 1, 6]).quality.ravel().tolist() == [1, 6, 9]


def test_a_flat_stretch_counts_from_its_cheap_end():
    curve = curve_of([1, 2, 4, 8], [1, 5, 5, 9])
    assert ratio(crossing_of(curve, 1, [5]).estimate) == pytest.approx(2)
    assert ratio(crossing_of(curve, 1, [1]).estimate) == pytest.approx(1)
    assert ratio(crossing_of(curve, 1, [9]).estimate) == pytest.approx(8)
    flat = crossing_of(curve_of([1, 2], [5, 5]), 1, [5])
    assert (ratio(flat.estimate), flat.beyond) == (pytest.approx(1), 0)


@pytest.mark.parametrize(
    ("quality", "estimate", "beyond"), [(0.5, 1, -1), (1, 1, 0), (9, 8, 0), (9.5, 8, 1)]
)
def test_beyond_the_ends(quality, estimate, beyond):
    crossing = crossing_of(curve_of([1, 2, 8], [1, 5, 9]), 2, [quality])
    assert (2 * ratio(crossing.estimate), crossing.beyond) == (pytest.approx(estimate), beyond)


def test_interval_is_open_where_the_curve_ends():
    curve = curve_of([1, 2, 4], [1, 5, 9], [1, 5, 9], [1, 5, 9])
    noise = np.array([-0.1, 0, 0.1])
    better = crossing_of(curve, 1, 9.1 + noise)  # half = 0.248: may be worse than the longest
    assert (better.beyond, better.high) == (1, math.inf)
    assert 2 < ratio(better.low) < 4
    surely_better = crossing_of(curve, 1, 9.3 + noise)
    assert (ratio(surely_better.low), surely_better.high) == (pytest.approx(4), math.inf)
    worse = crossing_of(curve, 1, 0.9 + noise)
    assert (worse.beyond, worse.low) == (-1, -math.inf)
    assert 1 < ratio(worse.high) < 2
    surely_worse = crossing_of(curve, 1, 0.7 + noise)
    assert (ratio(surely_worse.high), surely_worse.low) == (pytest.approx(1), -math.inf)


def test_two_seeds_have_a_wide_interval_and_noise_alone_an_open_one():
    curve = curve_of([1, 2, 4], [1, 5, 9], [1, 5, 9])
    # Differences -+0.1: sd 0.141421, t(0.975, 1) = 12.7062, half = 1.27062.
    crossing = crossing_of(curve, 1, [4.9, 5.1])
    assert ratio(crossing.low) == pytest.approx(1 / (1 - (4 - 1.27062) / 8), abs=1e-5)
    noise = crossing_of(curve, 1, [1, 9])
    assert (noise.low, noise.high) == (-math.inf, math.inf)


def test_a_curve_of_one_length_gives_bounds():
    curve = curve_of([2], [5], [5], [5])
    better = crossing_of(curve, 1, [6, 6.1, 6.2])
    assert (ratio(better.estimate), ratio(better.low), better.high) == (2, 2, math.inf)
    assert better.beyond == 1
    unclear = crossing_of(curve, 1, [4, 5.1, 6])
    assert (unclear.low, unclear.high) == (-math.inf, math.inf)


def test_more_confidence_is_wider():
    curve = curve_of([1, 2, 4], [1, 5, 9], [1, 5, 9], [1, 5, 9])
    usual = crossing_of(curve, 1, [4.9, 5, 5.1])
    strict = crossing_of(curve, 1, [4.9, 5, 5.1], confidence=0.99)
    assert strict.low < usual.low < usual.estimate < usual.high < strict.high
    with pytest.raises(ValueError, match=r"confidence is 95, expected a share such as 0\.95"):
        crossing_of(curve, 1, [4.9, 5, 5.1], confidence=95)


def test_costs_that_vary_with_the_seed_in_both_cancel_and_others_do_not():
    quality = np.array([[1.0, 1, 1], [5, 5, 5]])
    point = np.array([3.0, 3, 3])
    slow = np.array([-0.1, 0, 0.1])  # a machine that is slower on some seeds
    curve = fit_curve(np.log([[1.0], [2.0]]) + slow, quality)
    correlated = cross(curve, slow, point, confidence=0.95)
    assert correlated.low == pytest.approx(correlated.high)
    independent = cross(curve, 0 * slow, point, confidence=0.95)
    assert independent.estimate == pytest.approx(correlated.estimate)
    # Log costs -0.1, 0, 0.1 by themselves have an interval of -+0.248, bent a little by the curve.
    assert independent.high - independent.low == pytest.approx(2 * 0.2484, rel=0.1)


def test_difference_at_the_same_cost():
    curve = curve_of([1, 2, 4], [1, 5, 9], [2, 6, 10])
    log_cost = np.full(2, math.log(4 / 3))  # halfway in 1 / cost between 1 and 2
    differences = differences_at_own_cost(curve, log_cost, np.array([4.0, 7.0]))
    assert differences == pytest.approx([1, 3])
    for cost, quality in ((0.5, 1), (8, 9)):  # beyond an end, that end
        differences = differences_at_own_cost(
            curve, np.full(2, math.log(cost)), np.array([9.0, 10.0])
        )
        assert differences[0] == pytest.approx(9 - quality)


# Several points at once.


def test_several_points_have_one_ratio_of_costs():
    # Full data is as good at 4/3 of the first point's cost and at 4/3 of the second's.
    curve = curve_of([100, 200, 400], [80, 84, 86])
    log_cost = np.log([[100.0], [150.0]])
    quality = np.array([[82.0], [84.0]])
    assert ratio(cross(curve, log_cost, quality, confidence=0.95).estimate) == pytest.approx(4 / 3)


def test_where_points_disagree_the_average_of_their_differences_is_zero():
    curve = curve_of([100, 200, 400], [80, 84, 86])
    log_cost = np.log([[100.0], [200.0]])
    # At the ratio r the curve is 88 - 8 / r and 88 - 4 / r: above 0.5 the mean is 88 - 6 / r, which
    # is 83.5 at r = 4/3.
    quality = np.array([[83.0], [84.0]])
    assert ratio(cross(curve, log_cost, quality, confidence=0.95).estimate) == pytest.approx(4 / 3)


def test_beyond_the_end_the_curve_is_continued_for_some_of_the_points():
    # The points are as good as full data at 4/5 of their own cost. The first one's is cheaper than
    # full data's cheapest run, where the curve is continued: 88 - 800 / cost at 80 is 78.
    curve = curve_of([100, 200], [80, 84])
    log_cost = np.log([[100.0], [200.0]])
    quality = np.array([[78.0], [83.0]])
    crossing = cross(curve, log_cost, quality, confidence=0.95)
    assert (ratio(crossing.estimate), crossing.beyond) == (pytest.approx(4 / 5), 0)


def test_points_that_are_better_than_the_whole_curve_give_a_bound():
    curve = curve_of([100, 200], [80, 84], [81, 85], [80, 84])
    log_cost = np.log([[100.0], [100.0]]) + np.zeros((2, 3))
    crossing = cross(curve, log_cost, np.full((2, 3), 90.0), confidence=0.95)
    assert (ratio(crossing.estimate), crossing.beyond, crossing.high) == (
        pytest.approx(2),
        1,
        math.inf,
    )


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.27, 0.4, "34% (27–40%)"),
        (-0.052, 0.4, "34% (−5% to 40%)"),
        (-0.003, 0.4, "34% (0–40%)"),
        (0.27, None, "34% (27% or more)"),
        (None, 0.4, "34% (40% or less)"),
        (None, None, "34%"),
    ],
)
def test_savings_in_words(low, high, text):
    assert Saving(0.34, None, low, high, 0.95).text == text


# By simulation: 95% of the intervals cover the truth, and the estimate is not off.

LENGTHS = np.array([0.4, 0.6, 0.8, 1.0])
ARM = 0.65  # the arm's cost, as a share of what full data needs: it saves 35%


def smooth(cost):
    """Against the full length, losses of 2.4, 0.9 and 0.3 points, as in our pilots."""
    return -0.8 * cost**-1.5


def straight(cost):
    """The same, joined as the estimator joins them."""
    return np.interp(-1 / cost, -1 / LENGTHS, smooth(LENGTHS))


def comparisons(truth, equal_cost, seeds, *, count, cost_noise=0.0):
    """Crossings of simulated comparisons, with noise that seeds share and noise that they do not."""
    generator = np.random.default_rng(seeds)
    for _ in range(count):
        shared = generator.normal(0, 0.3, seeds)
        quality = truth(LENGTHS)[:, None] + shared + generator.normal(0, 0.15, (4, seeds))
        point = truth(equal_cost) + shared + generator.normal(0, 0.15, seeds)
        slow = generator.normal(0, cost_noise, (5, seeds))
        cost = np.log(LENGTHS)[:, None] + slow[:4]
        yield cost, quality, np.log(ARM * equal_cost) + slow[4], point


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(
    ("truth", "equal_cost", "cost_noise"),
    [(straight, 0.5, 0.0), (straight, 0.9, 0.03), (smooth, 0.7, 0.0), (smooth, 0.9, 0.0)],
)
def test_coverage_and_bias(truth, equal_cost, cost_noise, seeds):
    savings, widths, covered, count = [], [], 0, 500
    ends = np.log(LENGTHS[[0, -1]] / (ARM * equal_cost))
    for runs in comparisons(truth, equal_cost, seeds, count=count, cost_noise=cost_noise):
        cost, quality, point_cost, point = runs
        crossing = cross(fit_curve(cost, quality), point_cost, point, confidence=0.95)
        covered += crossing.low <= -math.log(ARM) <= crossing.high
        savings.append(-math.expm1(-crossing.estimate))
        # An open interval ends with the curve.
        low, high = np.clip([crossing.low, crossing.high], *ends)
        widths.append(math.exp(-low) - math.exp(-high))
    assert 0.90 <= covered / count <= 0.99
    bias = np.mean(savings) - (1 - ARM)
    assert abs(bias) < 0.1 * np.median(widths)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("kept", "saving"), [(0.58, 0.3), (0.65, 0.0)])
def test_the_interval_of_three_lengths_covers_as_well_and_is_narrower(kept, saving, seeds):
    covered, widths, count = 0, [], 300
    generator = np.random.default_rng(seeds)
    costs, log_costs = kept * LENGTHS[1:], np.log(LENGTHS)[:, None]
    for _ in range(count):
        shared = generator.normal(0, 0.3, seeds)
        full = smooth(LENGTHS)[:, None] + shared + generator.normal(0, 0.15, (4, seeds))
        arm = smooth(costs / (1 - saving))[:, None] + shared
        arm = arm + generator.normal(0, 0.15, (3, seeds))
        curve = fit_curve(log_costs + 0 * full, full)
        point_costs = np.log(costs)[:, None] + 0 * arm
        crossing = cross(curve, point_costs, arm, confidence=0.95)
        single = cross(curve, point_costs[-1], arm[-1], confidence=0.95)
        covered += crossing.low <= -math.log(1 - saving) <= crossing.high
        widths.append(
            [math.exp(-found.low) - math.exp(-found.high) for found in (crossing, single)]
        )
    assert 0.90 <= covered / count <= 0.99
    pooled, one = np.median(widths, axis=0)
    assert pooled < 0.6 * one


@pytest.mark.parametrize(
    ("equal_cost", "worst"), [(0.45, 0.01), (0.5, 0.01), (0.7, 0.01), (0.9, 0.01)]
)
def test_reading_between_two_lengths_is_off_by_little(equal_cost, worst):
    """What remains without noise, however many seeds: the chord of a curve that bends."""
    quality = np.repeat(smooth(LENGTHS)[:, None], 3, axis=1)
    curve = fit_curve(np.log(LENGTHS)[:, None] + 0 * quality, quality)
    log_cost = np.full(3, math.log(ARM * equal_cost))
    crossing = cross(curve, log_cost, np.full(3, smooth(equal_cost)), confidence=0.95)
    assert 0 <= -math.expm1(-crossing.estimate) - (1 - ARM) < worst


def test_where_full_data_stops_gaining_between_two_lengths_the_arm_is_favoured():
    """The documented limit of four lengths: up to about 0.1, for an abrupt stop."""
    stops = np.minimum(LENGTHS, 0.7)
    quality = np.repeat(smooth(stops)[:, None], 3, axis=1)
    curve = fit_curve(np.log(LENGTHS)[:, None] + 0 * quality, quality)
    crossing = cross(
        curve, np.full(3, math.log(ARM * 0.69)), np.full(3, smooth(0.69)), confidence=0.95
    )
    assert 0.05 < -math.expm1(-crossing.estimate) - (1 - ARM) < 0.1


@pytest.mark.slow
def test_a_percentile_bootstrap_covers_too_little():
    """Why the interval inverts a t test instead."""
    seeds, covered, count = 3, 0, 400
    generator = np.random.default_rng(1)
    for cost, quality, point_cost, point in comparisons(straight, 0.5, seeds, count=count):
        drawn = generator.integers(0, seeds, (100, seeds))
        estimates = [
            cross(
                fit_curve(cost[:, resampled].mean(axis=1, keepdims=True), quality[:, resampled].mean(axis=1, keepdims=True)),
                point_cost[resampled].mean(keepdims=True),
                point[resampled].mean(keepdims=True),
                confidence=0.95,
            ).estimate
            for resampled in drawn
        ]  # fmt: skip
        low, high = np.percentile(estimates, [2.5, 97.5])
        covered += low <= -math.log(ARM) <= high
    assert 0.6 < covered / count < 0.8
