"""Where a curve reaches a quality: by hand, at ties, beyond its ends, with costs that vary."""

import math

import numpy as np
import pytest

from infobatch.lab.stats.crossing import cross, differences_at_own_cost, fit_curve


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
    together = cross(curve, slow, point, confidence=0.95)
    assert together.low == pytest.approx(together.high)
    alone = cross(curve, 0 * slow, point, confidence=0.95)
    assert alone.estimate == pytest.approx(together.estimate)
    # Log costs -0.1, 0, 0.1 by themselves have an interval of -+0.248, bent a little by the curve.
    assert alone.high - alone.low == pytest.approx(2 * 0.2484, rel=0.1)


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
