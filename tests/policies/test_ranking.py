"""The cut that the selecting rules use, against a sort; from sums, on ranks and with costs."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from infobatch.policies.base import alone
from infobatch.policies.ranking import _counted, lowest
from rank_threads import Exchange


def random_case(rng, trial):
    size = int(rng.integers(1, 60))
    values = rng.normal(size=size).astype(np.float32)
    if trial % 3 == 0:
        values = np.round(values)  # ties, and both zeros
    if trial % 5 == 0:
        values[rng.random(size) < 0.2] = np.nan
    if trial % 7 == 0:
        values[0] = -np.inf
    cost = rng.integers(1, 5, size).astype(np.float32) if trial % 2 else None
    return values, float(rng.choice([0, 0.1, 0.3, 0.5, 0.9, rng.random()])), cost


def test_the_mass_below_is_what_was_asked_for():
    rng = np.random.default_rng(0)
    for trial in range(1000):
        values, share, cost = random_case(rng, trial)
        masses = np.ones(len(values)) if cost is None else cost.astype(float)
        cut = lowest(values, share, cost=cost)
        below = masses[values < cut.value].sum() + cut.tied * masses[values == cut.value].sum()
        known = masses[~np.isnan(values)].sum()
        assert below == pytest.approx(min(share * masses.sum(), known), abs=1e-5)
        assert 0 <= cut.tied <= 1
        labels = cut.labels(values)
        assert (
            labels == np.where(values < cut.value, 1, np.where(values == cut.value, 2, 0))
        ).all()


def test_sums_and_selection_agree():
    rng = np.random.default_rng(1)
    for trial in range(0, 1000, 2):
        values, share, _ = random_case(rng, trial)
        selected, counted = lowest(values, share), _counted(values, None, alone, share=share)
        assert selected.value == counted.value
        assert selected.tied == pytest.approx(counted.tied, abs=1e-9)


@pytest.mark.parametrize("with_costs", [False, True])
def test_shards_find_the_cut_of_the_whole(with_costs):
    rng = np.random.default_rng(2)
    values = np.round(rng.normal(size=500), 1).astype(np.float32)
    cost = rng.integers(1, 9, 500).astype(np.float32) if with_costs else None
    whole = lowest(values, 0.37, cost=cost)
    exchange = Exchange(3)

    def of_rank(rank):
        def total(numbers):
            return exchange.gather(rank, torch.from_numpy(numbers)).sum(0).numpy()

        costs = None if cost is None else cost[rank::3]
        return lowest(values[rank::3], 0.37, cost=costs, total=total)

    with ThreadPoolExecutor(3) as pool:
        for cut in pool.map(of_rank, range(3)):
            assert cut.value == whole.value
            assert cut.tied == pytest.approx(whole.tied)
