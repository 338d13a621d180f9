"""The mean rule's controls; the rule itself is tested against the paper's equations elsewhere."""

import numpy as np
import pytest

import infobatch
from infobatch.policies import BiasedPolicyWarning, MeanPrune, RandomPrune
from remembered import kept_by, losses_by_epoch, samples_after

SIZE = 200


@pytest.mark.parametrize("side", ["below", "above"])
@pytest.mark.parametrize("rescale", [True, False])
def test_the_conditions_of_tables_4_and_5(side, rescale):
    losses = losses_by_epoch(1, SIZE)
    policy = MeanPrune(0.4, side=side, rescale=rescale)
    strata = policy.strata(samples_after(policy, losses))
    mean = np.mean(losses[0], dtype=float)
    pruned = losses[0] < mean if side == "below" else losses[0] > mean
    kept, weights = kept_by(strata)
    assert set(np.flatnonzero(~pruned)) <= set(kept)
    number = round(0.6 * pruned.sum())
    assert len(kept) == SIZE - pruned.sum() + number
    expected = pruned.sum() / number if rescale else 1.0
    for sample, weight in zip(kept, weights, strict=True):
        assert weight == pytest.approx(expected if pruned[sample] else 1.0)
    assert strata.thresholds == pytest.approx((mean,))
    assert strata.biased != rescale


@pytest.mark.parametrize("side", ["below", "above"])
def test_equal_losses_prune_nothing(side):
    policy = MeanPrune(side=side)
    assert len(kept_by(policy.strata(samples_after(policy, [np.full(SIZE, 0.3)])))[0]) == SIZE


@pytest.mark.parametrize("rule", [MeanPrune, RandomPrune])
def test_without_rescaling_it_is_biased_and_says_so(rule):
    scores = np.arange(10.0)
    assert len(infobatch.Pruner(10, 3, policy=rule(), initial_scores=scores).plan) < 10
    pruner = infobatch.Pruner(10, 3, policy=rule(rescale=False), initial_scores=scores)
    with pytest.warns(BiasedPolicyWarning, match=r"is biased: its weights do not make up for the"):
        assert len(pruner.plan) < 10


def test_errors():
    with pytest.raises(ValueError, match=r"MeanPrune\(side=…\) got 'left', expected 'below'"):
        MeanPrune(side="left")
