"""The interval of the saving by simulation: 95% cover the truth, and the estimate is not off."""

import math

import numpy as np
import pytest

from infobatch.lab.stats.crossing import cross, fit_curve

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
