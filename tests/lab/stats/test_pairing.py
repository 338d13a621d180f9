"""The one pairing of runs by seed: what is paired, what is left out, and what is wrong."""

import numpy as np
import pytest
from measured import paired, runs_of

from infobatch.lab.stats.pairing import Measurement

FULL = runs_of("full", {0.5: [80, 82, 84], 1.0: [84, 86, 88]})


def test_runs_of_the_same_seeds():
    pairs = paired(FULL, runs_of("mean", {1.0: [81, 84, 87]}, cost=50)).pairs(("mean", 1.0))
    assert pairs.seeds == (0, 1, 2)
    assert pairs.quality.tolist() == [[81, 84, 87]]
    assert pairs.full_quality.tolist() == [[80, 82, 84], [84, 86, 88]]
    assert pairs.to_full.tolist() == [-3, -2, -1]
    assert np.exp(pairs.cost) == pytest.approx(np.array([[50, 50, 50]]))
    assert np.exp(pairs.full_cost) == pytest.approx(np.array([[50] * 3, [100] * 3]))


def test_only_seeds_that_every_arm_and_all_of_full_datas_lengths_have():
    full = [run for run in FULL if (run.seed, run.length) != (2, 0.5)]
    other = [run for run in runs_of("other", {1.0: [1, 2, 3]}) if run.seed != 0]
    runs = paired(full, runs_of("mean", {1.0: [82, 84, 86]}, cost=50), other)
    assert runs.pairs().seeds == (0, 1)
    assert runs.pairs(("mean", 1.0)).seeds == (0, 1)
    assert runs.pairs(("mean", 1.0), ("other", 1.0)).seeds == (1,)
    assert runs.pairs(("mean", 0.5)).seeds == (), "it was not trained for that"


def test_a_seed_on_which_an_arm_diverged_stays():
    pairs = paired(FULL, runs_of("mean", {1.0: [82, None, 86]})).pairs(("mean", 1.0))
    assert (pairs.seeds, pairs.diverged) == ((0, 1, 2), (1,))
    assert pairs.to_full.tolist() == [-2, -np.inf, -2]


def test_lower_is_better():
    runs = paired(FULL, runs_of("mean", {1.0: [82, 84, 86]}), higher_is_better=False)
    assert runs.pairs(("mean", 1.0)).to_full.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([Measurement("mean", 1, 0, 1, 1)], r"There is no run of 'full'.*; got runs of: mean\."),
        ([], r"got runs of: none\."),
        ([Measurement("full", 1, 0, 0, 1)], r"cost of 'full', length 1, seed 0 is 0, expected"),
        ([Measurement("full", 0, 0, 1, 1)], r"length is 0, expected a share of the epochs above 0"),
        ([Measurement("full", 1, 0, 1, 1)] * 2, r"two runs of 'full', length 1, seed 0, expected"),
    ],
)
def test_error_texts(runs, message):
    with pytest.raises(ValueError, match=message):
        paired(runs)
