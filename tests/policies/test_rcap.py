import math

import numpy as np
import pytest

import infobatch
from infobatch.policies import RcapPrune
from infobatch.policies.baselines.rcap import filled
from remembered import kept_by, losses_by_epoch, samples_after

SIZE, CLASSES = 3000, 4


def class_budgets(losses, labels, wanted, highest):
    """√(class loss × class share), at most the class; what one cannot take goes to the others."""
    classes = range(CLASSES)
    members = [[i for i in range(len(labels)) if labels[i] == c] for c in classes]
    clipped = [min(max(loss, 0), highest) for loss in losses]
    part = [
        math.sqrt(np.mean([clipped[i] for i in group]) * len(group) / len(labels))
        for group in members
    ]
    budgets = [0.0] * CLASSES
    free = set(classes)
    while free:
        total = sum(part[c] for c in free)
        offered = {c: wanted * part[c] / total for c in free}
        full = {c for c in free if offered[c] >= len(members[c])}
        if not full:
            for c in free:
                budgets[c] = offered[c]
            break
        for c in full:
            budgets[c] = float(len(members[c]))
            wanted -= len(members[c])
        free -= full
    return budgets


def probabilities(losses, budget, highest, beta):
    """min(1, c × exp(min(loss, highest) / beta)) that sum to the budget, by bisection."""
    hardness = [math.exp((min(max(loss, 0), highest) - highest) / beta) for loss in losses]
    low, high = 0.0, 1e9
    for _ in range(200):
        slope = (low + high) / 2
        enough = sum(min(1.0, slope * h) for h in hardness) >= budget
        low, high = (low, slope) if enough else (slope, high)
    return [min(1.0, high * h) for h in hardness]


def skewed_labels(seed=0):
    return np.random.default_rng(seed).choice(CLASSES, SIZE, p=[0.6, 0.3, 0.07, 0.03])


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_against_the_paper(ratio, beta):
    labels = skewed_labels()
    losses = losses_by_epoch(1, SIZE) * np.array([0.2, 1.0, 1.5, 3.0], np.float32)[labels]
    policy = RcapPrune(ratio, beta=beta)
    strata = policy.strata(samples_after(policy, losses, labels=labels))
    highest = math.log(CLASSES)
    budgets = class_budgets(losses[0], labels, (1 - ratio) * SIZE, highest)
    kept = np.array([1.0, *strata.keep])[strata.labels]
    assert kept.sum() == pytest.approx((1 - ratio) * SIZE, rel=2e-3)
    for c in range(CLASSES):
        members = labels == c
        assert kept[members].sum() == pytest.approx(budgets[c], rel=0.04), c
        expected = probabilities(losses[0][members], budgets[c], highest, beta)
        assert np.abs(kept[members] - expected).mean() < 0.02
    chosen, weights = kept_by(strata)
    assert len(chosen) == pytest.approx((1 - ratio) * SIZE, abs=6)
    assert set(weights) == {1.0}


def test_classes_differ_by_their_losses_when_these_are_small():
    """Late in training most losses are below a step of the bins, and the classes still differ."""
    labels = np.arange(SIZE) % CLASSES
    losses = losses_by_epoch(1, SIZE) * np.array([1e-5, 1e-4, 5e-4, 1e-3], np.float32)[labels]
    policy = RcapPrune(0.9)
    strata = policy.strata(samples_after(policy, losses, labels=labels))
    budgets = class_budgets(losses[0], labels, 0.1 * SIZE, math.log(CLASSES))
    kept = np.array([1.0, *strata.keep])[strata.labels]
    assert max(budgets) > 8 * min(budgets)
    for c in range(CLASSES):
        assert kept[labels == c].sum() == pytest.approx(budgets[c], rel=0.04)


def test_what_a_class_cannot_take_is_divided_among_the_others():
    parts, most = np.array([10.0, 1.0, 1.0]), np.array([3.0, 50.0, 50.0])
    assert filled(parts, most, 43.0).tolist() == [3.0, 20.0, 20.0]
    assert filled(parts, most, 103.0).tolist() == most.tolist()
    assert filled(np.zeros(3), most, 10.3).tolist() == pytest.approx([0.3, 5.0, 5.0])


def test_a_rare_hard_class_is_kept_whole_and_an_easy_one_pays():
    labels = skewed_labels()
    losses = np.where(labels == 3, 2.0, 0.05).astype(np.float32)[None]
    policy = RcapPrune(0.7)
    kept, _ = kept_by(policy.strata(samples_after(policy, losses, labels=labels)))
    assert set(np.flatnonzero(labels == 3)) <= set(kept)
    assert len(kept) == pytest.approx(900, abs=3)


@pytest.mark.parametrize(
    "labels", [skewed_labels() * 1000, np.array(list("abcd"))[skewed_labels()]]
)
def test_classes_by_any_name(labels):
    losses = losses_by_epoch(1, SIZE)
    policy = RcapPrune()
    expected = policy.strata(samples_after(policy, losses, labels=skewed_labels()))
    strata = policy.strata(samples_after(policy, losses, labels=labels))
    assert np.array_equal(strata.labels, expected.labels)
    assert strata.keep == expected.keep


def test_costs_targets_ties_and_unknown_losses():
    labels = skewed_labels()
    cost = np.where(np.arange(SIZE) % 2, 5, 1).astype(np.float32)
    for losses in (losses_by_epoch(1, SIZE), np.full((1, SIZE), 0.5), np.zeros((1, SIZE))):
        losses[0, ::9] = np.nan
        policy = RcapPrune()
        samples = samples_after(policy, losses, labels=labels, cost=cost, target=0.3)
        kept, _ = kept_by(policy.strata(samples))
        assert set(range(0, SIZE, 9)) <= set(kept)
        assert cost[kept].sum() / cost.sum() == pytest.approx(0.7, abs=0.02)


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_errors():
    with pytest.raises(ValueError, match=r"RcapPrune\(beta=…\) got 0, expected a number > 0"):
        RcapPrune(beta=0)
    with pytest.raises(
        ValueError, match=r"policy=RcapPrune\(.*\) got no labels, expected the class"
    ):
        infobatch.Pruner(10, 20, policy="rcap")
