import math

import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import KakurenboPrune
from remembered import kept_by, losses_by_epoch, samples_after

SIZE = 100


def fraction(epoch, epochs, ratio):
    """The paper's: 0.3 × {1, 0.8, 0.6, 0.4} at 0, 30, 60 and 80% of the training."""
    done = epoch / epochs
    return ratio * (1 if done < 0.3 else 0.8 if done < 0.6 else 0.6 if done < 0.8 else 0.4)


def hidden_by_the_paper(losses, share, confidence, correct, threshold):
    candidates = sorted(range(len(losses)), key=lambda sample: losses[sample])
    candidates = candidates[: math.floor(share * len(losses) + 1e-9)]
    return {i for i in candidates if correct[i] and confidence[i] >= threshold}


@pytest.mark.parametrize("epoch", [1, 29, 30, 59, 60, 79, 80, 99])
def test_against_the_paper(epoch):
    losses = losses_by_epoch(1, SIZE, seed=epoch) * 0.7
    policy = KakurenboPrune(0.4)
    share = fraction(epoch, 100, 0.4)
    p = np.exp(-losses[0].astype(float))
    hidden = hidden_by_the_paper(losses[0], share, p, p > 0.5, 0.7)
    kept, weights = kept_by(policy.strata(samples_after(policy, losses, epoch=epoch)))
    assert set(range(SIZE)) - set(kept) == hidden
    assert len(hidden) > 0
    assert weights == pytest.approx([1 / (1 - share)] * len(kept), rel=1e-12)


def test_extras_decide_for_other_losses():
    rng = np.random.default_rng(0)
    losses = losses_by_epoch(1, SIZE)
    reported = {"confidence": rng.random(SIZE), "correct": rng.random(SIZE) < 0.6}
    policy = KakurenboPrune(0.5, extras=True)
    hidden = hidden_by_the_paper(
        losses[0], 0.5, reported["confidence"].astype(np.float32), reported["correct"], 0.7
    )
    kept, _ = kept_by(policy.strata(samples_after(policy, losses, [reported], epoch=1)))
    assert set(range(SIZE)) - set(kept) == hidden
    assert 0 < len(hidden) < 50


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_extras_that_are_missing_are_an_error():
    pruner = infobatch.Pruner(8, 3, policy=KakurenboPrune(extras=True))
    list(pruner.sampler)
    with pytest.raises(ValueError, match=r"update\(\) got no 'confidence' for its samples"):
        pruner.update(torch.rand(8))
    with pytest.raises(ValueError, match=r"update\(\) got no 'correct' for its samples"):
        pruner.update(torch.rand(8), extras={"confidence": torch.rand(8)})
    pruner.update(torch.rand(8), extras={"confidence": torch.rand(8), "correct": torch.ones(8)})


def test_a_budget_takes_confident_samples_first_and_then_others():
    losses = np.linspace(0.01, 2, SIZE, dtype=np.float32)[None]  # 18 of them are confident
    policy = KakurenboPrune()
    for target, expected in ((0.1, 10), (0.3, 30)):
        strata = policy.strata(samples_after(policy, losses, target=target, epoch=1))
        kept, weights = kept_by(strata)
        assert kept == list(range(expected, SIZE))
        assert weights[0] == pytest.approx(1 / (1 - target))


def test_ties_and_unknown_losses():
    losses = np.full((1, SIZE), 0.1, np.float32)
    losses[0, 50:] = np.nan
    policy = KakurenboPrune(0.3)
    kept, _ = kept_by(policy.strata(samples_after(policy, losses, epoch=1)))
    assert len(kept) == 70
    assert set(range(50, SIZE)) <= set(kept)


@pytest.mark.parametrize(("extras", "least"), [(False, "0.5"), (True, "0")])
def test_errors(extras, least):
    text = rf"KakurenboPrune\(confidence=…\) got -1, expected a number >= {least} and <= 1"
    with pytest.raises(ValueError, match=text):
        KakurenboPrune(confidence=-1, extras=extras)
