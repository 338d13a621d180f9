import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import IesPrune
from remembered import kept_by, samples_after

SIZE = 60


def mastered(losses, threshold):
    """The paper's criterion for one sample, from all of its losses."""
    known = [float(loss) for loss in losses if np.isfinite(loss)]
    second = [known[t] - 2 * known[t - 1] + known[t - 2] for t in range(2, len(known))]
    return len(second) >= 3 and np.mean(np.abs(second[-3:])) < threshold


@pytest.mark.parametrize("number", [1, 4, 5, 8])
def test_against_the_paper(number):
    rng = np.random.default_rng(0)
    noise = np.logspace(-5, -1, SIZE)  # the first samples hardly move
    epochs = (0.5 + noise * rng.normal(size=(number, SIZE))).astype(np.float32)
    epochs[number // 2, ::7] = np.nan
    policy = IesPrune(1e-3)
    expected = {sample for sample in range(SIZE) if mastered(epochs[:, sample], 1e-3)}
    kept, weights = kept_by(policy.strata(samples_after(policy, epochs)))
    assert set(range(SIZE)) - set(kept) == expected
    assert bool(expected) == (number >= 5)
    assert set(weights) == {1.0}


def test_a_loss_that_falls_evenly_is_mastered_and_one_that_turns_is_not():
    falling, turning = [5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 1.0, 2.0, 1.0]
    policy = IesPrune(0.5)
    kept, _ = kept_by(policy.strata(samples_after(policy, np.array([falling, turning]).T)))
    assert kept == [1]


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_it_has_no_budget():
    with pytest.raises(ValueError, match=r"save=0.4 was given with IesPrune.*no share to adapt"):
        infobatch.Pruner(10, 20, policy="ies", save=0.4)


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
@pytest.mark.filterwarnings("ignore:.*refresh:UserWarning")
def test_an_epoch_without_samples_is_whole_instead():
    """Every loss stands still, so every sample counts as mastered."""
    pruner = infobatch.Pruner(SIZE, 8, policy="ies")
    for _ in range(5):
        pruner.update(torch.ones(len(list(pruner.sampler))))
    with pytest.warns(
        UserWarning, match=r"IesPrune\(threshold=0.001\) leaves out every sample in epoch 5"
    ):
        assert len(list(pruner.sampler)) == SIZE
    assert pruner.plan.weights.tolist() == [1.0] * SIZE


def test_errors():
    with pytest.raises(ValueError, match=r"IesPrune\(threshold=…\) got -1, expected a number >= 0"):
        IesPrune(-1)
