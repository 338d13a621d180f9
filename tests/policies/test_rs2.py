import itertools

import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import Rs2Prune
from remembered import kept_by, samples_after

pytestmark = pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")


def visits_by_epoch(size, epochs, ratio, **options):
    """Train; return the samples of each epoch."""
    pruner = infobatch.Pruner(size, epochs, policy=Rs2Prune(ratio), **options)
    visited = []
    for _ in range(epochs):
        order = list(pruner.sampler)
        visited.append(order)
        pruner.update(torch.rand(len(order)))
    return visited


@pytest.mark.parametrize("ratio", [0.9, 0.7, 0.5, 0.3, 0.25, 0.1])
def test_the_slices_of_orders_that_follow_one_another(ratio):
    """Every stretch of the run that is as long as the data visits every sample as often as it can."""
    size = 40
    visited = visits_by_epoch(size, 24, ratio)
    assert len(visited[0]) == size
    slice_size = round((1 - ratio) * size)
    for order in visited[1:]:
        assert len(order) == len(set(order)) == slice_size
    counts = np.zeros(size, int)
    for order in visited:
        counts[order] += 1
        assert counts.max() - counts.min() <= 1, "no sample twice before all have been visited"


def test_the_remainder_comes_first_and_is_filled_up_from_the_others():
    size = 10
    first, *rest = visits_by_epoch(size, 3, 0.3)
    assert sorted(first) == list(range(size))
    remainder = set(range(size)) - set(rest[0])
    assert len(remainder) == 3
    assert remainder < set(rest[1])


def test_every_subset_is_as_likely():
    """Two of four, by enumeration: each of the six subsets, over many seeds."""
    policy = Rs2Prune(0.5)
    strata = policy.strata(samples_after(policy, [np.ones(4)]))
    times = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    for seed in range(1200):
        times[tuple(kept_by(strata, seed)[0])] += 1
    assert all(abs(count - 200) < 5 * np.sqrt(200 * 5 / 6) for count in times.values())


def test_a_budget_changes_the_slices_and_not_the_turns():
    counts = np.zeros(60, int)
    for order in visits_by_epoch(60, 20, 0.5, save=0.6):
        counts[order] += 1
        assert counts.max() - counts.min() <= 1
    assert counts.sum() == pytest.approx(0.4 * 60 * 20, abs=12)


def test_errors():
    with pytest.raises(ValueError, match=r"Rs2Prune\(ratio=…\) got 1.0"):
        Rs2Prune(1.0)
