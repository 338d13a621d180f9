"""Probabilities that follow the scores, and the draw that has exactly these."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

from infobatch.plan.importance import priority, slope_for_budget, slope_for_noise, systematic


def lognormal(size, seed=0):
    rng = np.random.default_rng(seed)
    return np.sort(rng.lognormal(0.0, 1.5, size))


def noise(scores, slope):
    chances = (slope * scores).clip(max=1)
    return float((scores**2 / chances).sum() / (scores**2).sum() - 1)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_probabilities_sum_to_the_budget(size, share):
    scores = lognormal(size)
    slope = slope_for_budget(scores, share * size)
    assert float((slope * scores).clip(max=1).sum()) == pytest.approx(share * size)


def test_ties_and_zeros():
    scores = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    slope = slope_for_budget(scores, 2.0)
    assert float(slope) == pytest.approx(0.5)


@pytest.mark.parametrize("limit", [0.01, 0.1, 0.5, 3.0])
def test_the_noise_is_exactly_the_limit(limit):
    scores = lognormal(1000)
    assert noise(scores, slope_for_noise(scores, limit)) == pytest.approx(limit)


def test_no_other_probabilities_with_the_same_budget_add_less_noise():
    scores, rng = lognormal(50), np.random.default_rng(1)
    best = noise(scores, slope_for_budget(scores, 25.0))
    chances = (slope_for_budget(scores, 25.0) * scores).clip(max=1)
    for _ in range(200):
        moved = chances.copy()
        first, second = rng.choice(50, 2, replace=False)
        step = float(rng.uniform(0, 0.05)) * min(float(moved[first]), 1 - float(moved[second]))
        moved[first] -= step
        moved[second] += step
        assert float((scores**2 / moved).sum() / (scores**2).sum() - 1) >= best - 1e-12


def test_every_sample_is_drawn_exactly_as_often_as_its_probability_says():
    """All permutations, and for each of them the start in every interval on which the draw is constant."""
    probabilities = np.array([0.3, 0.85, 1.0, 0.1, 0.25])
    drawn = np.zeros(5)
    for order in np.array(list(permutations(range(5)))):
        steps = (-probabilities[order].cumsum() % 1).tolist()  # where the draw changes
        edges = sorted({0.0, 1.0, *steps})
        for low, high in pairwise(edges):
            chosen = systematic(probabilities, order, (low + high) / 2)
            if high - low > 1e-12:
                assert int(chosen.sum()) in (2, 3)  # they sum to 2.5
            drawn += (high - low) * chosen
    assert np.allclose(drawn / 120, probabilities)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_fixed_number_of_samples_is_drawn_without_bias(count):
    """A z-test of each sample's weight, which is 0 if it is not drawn and has mean 1."""
    sizes = torch.tensor([1e-3, 0.5, 0.5, 1.0, 4.0, 30.0])
    generator = torch.Generator().manual_seed(0)
    weights = torch.zeros(4000, 6)
    for row in weights:
        index, weight = priority(sizes, 1 - torch.rand(6, generator=generator), count)
        assert len(index.unique()) == count
        row[index] = weight
    z = (weights.mean(0) - 1) / (weights.std(0) / len(weights) ** 0.5 + 1e-9)
    assert z[1:].abs().max() < 4  # the first is drawn too rarely for a normal distribution
    assert weights.min() == 0
    # Every weighted sum is unbiased, and that of the sizes themselves hardly varies.
    sums = weights @ sizes
    assert abs(sums.mean() - sizes.sum()) < 4 * sums.std() / len(sums) ** 0.5
