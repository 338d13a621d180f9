"""Stratified orders: every class has its share of every batch, and every sample every position."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

import infobatch
from infobatch.plan import Strata, draw_plan, stratified, whole_plan
from infobatch.plan.plan import Packing
from infobatch.plan.stratified import choose_step, class_quotas, draw_by_class

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


def classes_of(count, shares, seed):
    shares = np.array(shares) / np.sum(shares)
    return np.random.default_rng(seed).choice(len(shares), count, p=shares).astype(np.uint8)


def bound(samples):
    """What docs/usage.md states: at most this many more or fewer of a class than its share."""
    return 1.25 + math.log2(samples)


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
            for size in (1, 2, 3, 4, 7, 8, 16, 64, 128, len(visited)):
                if size <= len(visited):
                    batches = counts[size:] - counts[:-size]  # from every position on
                    assert np.abs(batches - size * share).max() <= bound(size)
            prefixes = np.arange(1, len(visited) + 1)
            off = np.abs(counts[1:] - prefixes[:, None] * share).max(1)
            assert (off <= 1.25 + np.log2(prefixes)).all()


@pytest.mark.parametrize("count", [2, 3, 50, 70_000])
@pytest.mark.parametrize("shares", [[1] * 5, [100, 1, 0, 1, 1]], ids=["equal", "large"])
def test_slow_reference(count, shares):
    """The docstring as plain loops: a ring of blocks in random order, quotas, and a walk with a step."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, count).astype(np.uint8)
    classes = classes_of(count, shares, 0)
    sizes = np.bincount(labels, minlength=3)
    targets = np.array([sizes[0], (sizes[1] + 1) // 2, (sizes[2] + 4) // 5])
    streams = {
        "order_stream": np.random.SeedSequence(1),
        "class_stream": np.random.SeedSequence(2),
    }

    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(2)))
    blocks = [[]]  # of parts, of rows
    for group in generator.permutation(int(classes.max()) + 1).tolist():
        rows = np.flatnonzero(classes == group).tolist()
        parts = math.ceil(len(rows) / 65_536)
        for part in range(parts):
            first, end = (len(rows) * number // parts for number in (part, part + 1))
            if sum(map(len, blocks[-1])) + end - first > 65_536:
                blocks.append([])
            blocks[-1].append(rows[first:end])
    assert len(blocks) == (2 if count > 65_536 else 1)
    bits, ring = np.random.SFC64(np.random.SeedSequence(1)), {}
    for number, block in enumerate(blocks):
        random_bits = 40 - (len(block) - 1).bit_length()
        rows = [(part, row) for part, rows in enumerate(block) for row in rows]
        keys = [raw >> (64 - random_bits) for raw in bits.random_raw(len(rows)).tolist()]
        places = sorted(
            range(len(rows)), key=lambda i: (rows[i][0], labels[rows[i][1]], keys[i], i)
        )
        for part, row in (rows[place] for place in places):
            ring.setdefault((number, part, int(labels[row])), []).append(row)
    offset, quotas, exact, taken = generator.random(), {}, 0.0, 0
    for cell in sorted(ring, key=lambda cell: cell[2]):
        exact += len(ring[cell]) * targets[cell[2]] / sizes[cell[2]]
        quotas[cell] = math.floor(round(exact, 6) + offset) - taken
        taken += quotas[cell]
    kept = [(row, cell[2]) for cell in ring for row in ring[cell][: quotas[cell]]]
    start, step = int(generator.integers(len(kept))), choose_step(len(kept), generator)
    walked = [kept[(start + p * step) % len(kept)] for p in range(len(kept))]
    for packing in (Packing.of(count, 3), Packing(np.uint64, 20)):
        codes = draw_by_class(labels, classes, targets, packing, **streams)
        assert codes.tolist() == [s << packing.row_bits | row for row, s in walked]


@pytest.fixture(params=[1 << 16, 4], ids=["whole", "in parts"])
def block(request, monkeypatch):
    """How many samples are drawn together; smaller ones than a user has draw small classes in parts."""
    monkeypatch.setattr(stratified, "_BLOCK", request.param)
    return request.param


def test_every_sample_is_equally_often_at_every_position(block):
    classes = np.array([0] * 7 + [1] * 3 + [2], np.uint8)
    count, epochs = len(classes), 2500
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


def test_every_class_keeps_its_share_of_every_stratum(block):
    strata = Strata((np.arange(3000) % 3).astype(np.uint8), (0.3, 0.8))
    classes = classes_of(3000, [5, 1, 1], 0)
    plan = draw_plan(strata, seed=2, epoch=5, classes=classes)
    order = plan.order.numpy()
    kept = np.bincount(3 * strata.labels[order] + classes[order], minlength=9)
    shares = np.array([1, 0.3, 0.8]).repeat(3) * np.bincount(3 * strata.labels + classes)
    assert (np.abs(kept - shares) < 1).all()
    assert kept.reshape(3, 3).sum(1).tolist() == [1000, 300, 800]
    assert float(plan.weights.sum()) == 3000
    for start in range(0, len(order) - 64, 64):
        batch = classes[order[start : start + 64]]
        off = np.abs(np.bincount(batch, minlength=3) - 64 * shares.reshape(3, 3).sum(0) / 2100)
        assert off.max() <= bound(64)


def test_a_draw_by_class_is_unbiased(block):
    """Every sample is kept with the probability that its weight makes up for, and every pair of a cell alike."""
    labels = np.array([0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2], np.uint8)
    classes = np.array([0, 0, 0, 0, 0, 1, 1, 2, 0, 1, 1], np.uint8)
    strata, epochs = Strata(labels, (0.43, 0.34)), 2500
    weights, together = np.zeros(len(labels)), np.zeros((4, 4))
    for epoch in range(epochs):
        plan = draw_plan(strata, seed=3, epoch=epoch, classes=classes)
        order = plan.order.numpy()
        weights[order] += plan.weights.numpy()
        kept = np.isin(np.arange(1, 5), order)
        together += np.outer(kept, kept)
        assert float(plan.weights.sum()) == pytest.approx(11)
    # A weight is 0 or at most 3, so its variance is at most 2.
    assert weights / epochs == pytest.approx(np.ones(11), abs=4.5 * math.sqrt(2 / epochs))
    if block > len(labels):
        pairs = together[np.triu_indices(4, 1)]
        assert pairs == pytest.approx(np.full(6, pairs.mean()), abs=4.5 * math.sqrt(pairs.mean()))


def test_only_classes_larger_than_a_block_are_cut(block):
    sizes = np.array([0, 2, 1, 0, 1, 2 * block + 1, block, block - 1, 1, 0])
    blocks = list(stratified._blocks(sizes))
    parts = [lengths.tolist() for _, lengths in blocks]
    third = (2 * block + 1) // 3
    cut = [third, third, 2 * block + 1 - 2 * third]
    assert np.concatenate(parts).tolist() == [2, 1, 1, *cut, block, block - 1, 1]
    assert all(sum(lengths) <= block for lengths in parts)
    assert [start for start, _ in blocks] == [sum(map(sum, parts[:i])) for i in range(len(parts))]


def test_a_large_class_keeps_its_share_of_every_stratum():
    labels = (np.arange(200_000) % 7).astype(np.uint8)
    classes = classes_of(len(labels), [7, 2, 1], 0)
    plan = draw_plan(Strata(labels, (0.123,) * 6), seed=0, epoch=0, classes=classes)
    order = plan.order.numpy()
    kept = np.bincount(3 * labels[order] + classes[order])
    shares = np.array([1] + [0.123] * 6).repeat(3) * np.bincount(3 * labels + classes)
    assert np.abs(kept - shares).max() < 1.01  # a stratum's own number is rounded, too


def test_quotas_are_exact_on_average():
    """By going through all offsets: every cell's mean number is its exact share."""

    class Offset:
        def __init__(self, offset):
            self.offset = offset

        def random(self):
            return self.offset

    sizes, strata = np.array([4, 3, 0, 2, 5, 1]), np.array([0, 0, 0, 1, 1, 1])
    targets = np.array([4, 3])
    offsets = (np.arange(5600) + 0.5) / 5600  # 7 and 8 divide 5600, so every jump lies between two
    quotas = np.array([class_quotas(sizes, strata, targets, Offset(o)) for o in offsets])
    exact = sizes * np.array([4 / 7] * 3 + [3 / 8] * 3)
    assert quotas.mean(0) == pytest.approx(exact, abs=1e-12)
    assert (np.abs(quotas - exact) < 1).all()
    assert (quotas[:, :3].sum(1) == 4).all()
    assert (quotas[:, 3:].sum(1) == 3).all()


def test_as_many_classes_as_samples():
    classes = np.arange(70_000, dtype=np.uint32)
    order = whole_plan(len(classes), seed=0, epoch=0, classes=classes).order
    assert torch.equal(order.sort().values, torch.arange(len(classes)))
    strata = Strata((classes % 200).astype(np.uint8), tuple(np.linspace(0.1, 0.9, 199)))
    plan = draw_plan(strata, seed=0, epoch=0, classes=classes)
    kept = np.bincount(strata.labels[plan.order.numpy()])
    assert kept[1:].tolist() == [round(350 * share) for share in strata.keep]


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


@pytest.mark.parametrize(
    ("labels", "types"),
    [
        (["cat", None, "dog", None], "NoneType and str"),
        ([None] * 4, "NoneType"),
        (np.array([1, "one", 2, 2], object), "int and str"),
    ],
)
@pytest.mark.parametrize("needing", [{"order": "stratified"}, {"protect_classes": 0.5}], ids=str)
def test_classes_without_an_order_raise(labels, types, needing):
    """Before the first epoch, not in the middle of a training."""
    with pytest.raises(
        ValueError, match=f"^labels got values of type {types}, which have no"
    ) as error:
        infobatch.Pruner(4, 2, labels=labels, **needing)
    assert str(error.value).endswith(
        "expected a name or number for the class of each sample. Give samples without a class one of "
        "their own, such as '' or -1."
    )


def test_names_and_numbers_are_classes_whatever_the_array():
    for labels in (["a", "b", "a"], [1, 2.5, 1], [b"a", b"b", b"a"]):
        pruner = infobatch.Pruner(3, 2, labels=np.array(labels, object), order="stratified")
        assert sorted(pruner.sampler) == [0, 1, 2]
    infobatch.Pruner(2, 2, labels=["a", None])  # nothing needs them
