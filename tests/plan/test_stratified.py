"""Stratified orders: every class has its share of every batch, and every sample every position."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

import infobatch
from infobatch.plan import Strata, draw_plan, whole_plan
from infobatch.plan.stratified import choose_step, spread_classes

RANKS = (1, 2, 4, 8, 16)


def classes_of(count, shares, seed):
    shares = np.array(shares) / np.sum(shares)
    return np.random.default_rng(seed).choice(len(shares), count, p=shares).astype(np.uint8)


def bound(samples):
    """What docs/usage.md states: at most this many more or fewer of a class than its share."""
    return 1 + math.log2(samples)


@pytest.mark.parametrize(
    "shares",
    [[1] * 10, [90, 9, 1], [1], 1 / np.arange(1, 41)],
    ids=["equal", "rare", "one", "forty"],
)
@pytest.mark.parametrize("count", [97, 1000, 5040, 20000])
def test_every_prefix_and_every_batch_of_every_rank_is_a_miniature(count, shares):
    classes = classes_of(count, shares, count)
    share = np.bincount(classes) / count
    order = whole_plan(count, seed=count, epoch=3, classes=classes).order.numpy()
    assert sorted(order.tolist()) == list(range(count))
    for ranks in RANKS:
        for rank in range(ranks):
            visited = classes[order[rank::ranks]]
            counts = np.zeros((len(visited) + 1, len(share)))
            counts[1:] = np.cumsum(np.eye(len(share))[visited], 0)
            for size in (*range(1, 17), 64, 128, len(visited)):
                if size <= len(visited):
                    batches = counts[size:] - counts[:-size]  # from every position on
                    assert np.abs(batches - size * share).max() <= bound(size)
            prefixes = np.arange(1, len(visited) + 1)
            off = np.abs(counts[1:] - prefixes[:, None] * share).max(1)
            assert (off <= 1 + np.log2(prefixes)).all()


def test_slow_reference():
    """The order of the docstring as a plain loop: a ring, class by class, walked with a step."""
    rng = np.random.default_rng(0)
    for count in (2, 3, 50, 1000):
        codes = rng.permutation(count).astype(np.uint32)
        classes = rng.integers(0, 5, count).astype(np.uint8)
        generator = np.random.default_rng(1)
        places = generator.permutation(int(classes.max()) + 1).tolist()
        ring = sorted(range(count), key=lambda i: places[classes[i]])  # stable
        step, start = choose_step(count, generator), int(generator.integers(count))
        expected = [codes[ring[(start + p * step) % count]] for p in range(count)]
        for kind in (np.uint32, np.uint64):
            spread = spread_classes(codes.astype(kind), classes, np.random.default_rng(1))
            assert spread.tolist() == expected


def test_every_sample_is_equally_often_at_every_position():
    classes = np.array([0] * 7 + [1] * 3 + [2], np.uint8)
    count, epochs = len(classes), 6000
    seen = np.zeros((count, count))
    for epoch in range(epochs):
        order = whole_plan(count, seed=0, epoch=epoch, classes=classes).order.numpy()
        seen[order, np.arange(count)] += 1
    z = (seen - epochs / count) / math.sqrt(epochs / count * (1 - 1 / count))
    assert np.abs(z).max() < 4.5
    assert 0.7 < (z**2).mean() < 1.3


def test_within_a_class_every_order_is_equally_likely():
    classes = np.array([0, 0, 0, 1, 1], np.uint8)
    orders = Counter()
    for epoch in range(3000):
        order = whole_plan(5, seed=1, epoch=epoch, classes=classes).order.tolist()
        orders[tuple(i for i in order if i < 3)] += 1
    assert len(orders) == 6
    assert all(abs(n - 500) < 4.5 * math.sqrt(3000 * 5 / 36) for n in orders.values())


def test_what_is_kept_and_its_weight_do_not_depend_on_the_order():
    strata = Strata((np.arange(3000) % 3).astype(np.uint8), (0.3, 0.8))
    classes = classes_of(3000, [5, 1, 1], 0)
    plain = draw_plan(strata, seed=2, epoch=5)
    spread = draw_plan(strata, seed=2, epoch=5, classes=classes)
    assert np.array_equal(np.sort(plain.codes), np.sort(spread.codes))
    assert not np.array_equal(plain.codes, spread.codes)
    kept = classes[spread.order.numpy()]
    share = np.bincount(kept) / len(kept)
    for start in range(0, len(kept) - 64, 64):
        off = np.abs(np.bincount(kept[start : start + 64], minlength=3) - 64 * share)
        assert off.max() <= bound(64)


def test_as_many_classes_as_samples():
    classes = np.arange(70_000, dtype=np.uint32)
    order = whole_plan(len(classes), seed=0, epoch=0, classes=classes).order
    assert torch.equal(order.sort().values, torch.arange(len(classes)))


@pytest.mark.parametrize("count", [0, 1, 2, 6])
def test_tiny_epochs(count):
    order = whole_plan(count, seed=0, epoch=0, classes=np.zeros(count, np.uint8)).order
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("policy", ["none", "mean", "auto"])
def test_resuming_at_any_step_continues_bit_for_bit(policy):
    names = np.array(["cat", "dog", "eel"])[classes_of(60, [6, 3, 1], 0)]
    options = {"policy": policy, "order": "stratified", "labels": names, "seed": 3}

    def epoch(pruner, states=None):
        visited = []
        for batch in pruner.batch_sampler(8, shrink="batch", even=True):
            visited.append(batch)
            pruner.update(torch.tensor(batch, dtype=torch.float32) / 60)
            if states is not None:
                states.append(pruner.state_dict())
        return visited

    pruner = infobatch.Pruner(60, 4, **options)
    epoch(pruner)
    states = []
    second, third = epoch(pruner, states), epoch(pruner)
    assert len(second) == 8
    for done in (1, 3, 7):
        again = infobatch.Pruner(60, 4, **options)
        again.load_state_dict(states[done - 1])
        assert epoch(again) == second[done:]
        assert epoch(again) == third


def test_each_shard_is_spread_by_itself():
    labels = classes_of(2000, [3, 1], 0)
    for rank in range(2):
        classes = labels[rank::2]
        plan = whole_plan(
            1000, seed=0, epoch=0, shard=infobatch.plan.Shard(rank, 2), classes=classes
        )
        visited = labels[plan.order.numpy()]
        share = classes.mean()
        sums = visited[:960].reshape(-1, 32).sum(1)
        assert np.abs(sums - 32 * share).max() <= bound(32)


def test_errors():
    with pytest.raises(
        ValueError,
        match=r"^order got 'strat', expected 'random' or 'stratified' \(each class has its share of "
        r"every batch\)\.$",
    ):
        infobatch.Pruner(4, 2, order="strat")
    with pytest.raises(
        ValueError,
        match=r"^order='stratified' got no labels, expected the class of each sample: pass labels=, an "
        r"array with one entry per sample\.$",
    ):
        infobatch.Pruner(4, 2, order="stratified")
