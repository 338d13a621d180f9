"""Several ranks: each reads other keys in every epoch, and all decide alike."""

import random
from itertools import chain

import pytest
import torch

import infobatch
from infobatch.keyed import exchange
from keyed_ranks import on_ranks
from keyed_runs import KEYS, batches, losses_of, train_epoch

EPOCHS = 4


def shards(rank, world_size, epoch):
    """The keys that a rank reads: others in every epoch, and not the same number on each rank."""
    order = random.Random(epoch).sample(KEYS, len(KEYS))
    cuts = [
        len(KEYS) * n * (n + 1) // (world_size * (world_size + 1)) for n in range(world_size + 1)
    ]
    return order[cuts[rank] : cuts[rank + 1]]


def drive(world_size):
    def work(pruner, rank):
        kept = []
        for epoch in range(EPOCHS):
            kept.append(train_epoch(pruner, epoch, shards(rank, world_size, epoch))[0])
        pruner.set_epoch(EPOCHS)
        return kept, pruner.scores(KEYS), pruner.savings, pruner.epoch_length

    return work


def alone(**options):
    pruner = infobatch.KeyedPruner(num_epochs=10, **options)
    kept = [sorted(train_epoch(pruner, epoch)[0]) for epoch in range(EPOCHS)]
    pruner.set_epoch(EPOCHS)
    return kept, pruner.scores(KEYS), pruner.savings, pruner.epoch_length


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("policy", ["mean", "auto"])
def test_any_number_of_ranks_decides_alike(world_size, sharded, policy, monkeypatch):
    monkeypatch.setattr(exchange, "_CHUNK", 7)  # many messages, the last ones not full
    expected = alone(policy=policy)
    results = on_ranks(world_size, drive(world_size), sharded=sharded, num_epochs=10, policy=policy)
    for epoch in range(EPOCHS):
        assert sorted(chain(*(kept[epoch] for kept, *_ in results))) == expected[0][epoch]
    assert len(expected[0][-1]) < len(KEYS)
    known = torch.stack([scores for _, scores, _, _ in results])
    assert (~known.isnan()).sum() == len(KEYS) * (1 if sharded else world_size)
    for rank, (_, scores, savings, length) in enumerate(results):
        mine = ~known[rank].isnan()
        assert torch.equal(scores[mine], expected[1][mine])
        assert [(e.full, e.planned, e.made) for e in savings.epochs] == [
            (e.full, e.planned, e.made) for e in expected[2].epochs
        ]
        assert length == expected[3]


def test_a_key_on_two_ranks_counts_once():
    """As with a loader that pads: the larger loss counts on every rank, and it is counted."""

    def work(pruner, rank):
        pruner.update(torch.tensor([1.0 + rank, 5.0]), key=["same", f"own {rank}"])
        pruner.set_epoch(1)
        return pruner.scores(["same"]).item(), pruner.num_keys, pruner.repeated

    with pytest.warns(
        UserWarning, match="1 times a key came again within epoch 0, which visited 3"
    ):
        assert on_ranks(2, work, num_epochs=3) == [(2.0, 3, 1)] * 2


def test_a_rank_without_batches():
    def work(pruner, rank):
        if rank == 0:
            pruner.update(losses_of(KEYS, 0), key=KEYS)
        pruner.set_epoch(1)
        return pruner.epoch_length

    first, second, third = on_ranks(3, work, num_epochs=3)
    assert first == second == third < len(KEYS)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize("within", [False, True])
def test_a_state_continues_on_any_number_of_ranks(sharded, before, after, within):
    """Between epochs and within one, where the new ranks read what the old ones have not."""
    epochs = 2

    def save(pruner, rank):
        for epoch in range(epochs):
            train_epoch(pruner, epoch, shards(rank, before, epoch))
        pruner.set_epoch(epochs)
        if not within:
            return pruner.state_dict(), []
        kept = list(filter(pruner.keeps, shards(rank, before, epochs)))[:10]
        for batch in batches(kept, 5):
            pruner.update(losses_of(batch, epochs), key=batch)
        return pruner.state_dict(), kept

    saved = on_ranks(before, save, sharded=sharded, num_epochs=10, policy="auto")
    states, done = [state for state, _ in saved], list(chain(*(kept for _, kept in saved)))

    def load(pruner, rank):
        pruner.load_state_dict(states if sharded else states[0])
        kept = [
            train_epoch(pruner, epoch, shards(rank, after, epoch))[0]
            for epoch in range(epochs, EPOCHS)
        ]
        pruner.set_epoch(EPOCHS)
        return kept, pruner.scores(KEYS), pruner.savings

    results = on_ranks(after, load, sharded=sharded, num_epochs=10, policy="auto")
    expected = alone(policy="auto")
    assert sorted(chain(done, *(kept[0] for kept, *_ in results))) == expected[0][epochs]
    assert sorted(chain(*(kept[1] for kept, *_ in results))) == expected[0][epochs + 1]
    for _, scores, savings in results:
        mine = ~scores.isnan()
        assert torch.equal(scores[mine], expected[1][mine])
        assert savings.made == expected[2].made


def test_states_of_ranks_that_do_not_belong_together():
    def save(pruner, rank):
        train_epoch(pruner, 0, shards(rank, 2, 0))
        pruner.set_epoch(1)
        return pruner.state_dict()

    states = on_ranks(2, save, sharded=True, num_epochs=10)
    pruner = infobatch.KeyedPruner(10)
    with pytest.raises(
        ValueError, match=r"got 1 state\(s\), expected 2: with sharded=True each rank has"
    ):
        pruner.load_state_dict(states[0])
    with pytest.raises(
        ValueError, match="got states of different steps, expected those that the ranks"
    ):
        pruner.load_state_dict([states[0], {**states[1], "epoch": 2}])


def test_ranks_with_other_settings_raise():
    """On every rank: none waits for another."""

    def work(pruner, rank):
        pruner._seed = rank
        pruner.update(losses_of(KEYS, 0)[rank::2], key=KEYS[rank::2])
        with pytest.raises(RuntimeError, match=r"^The ranks have decided differently about this"):
            pruner.set_epoch(1)

    on_ranks(2, work, num_epochs=3, delta=1.0)


def test_too_few_keys_for_shards():
    def work(pruner, rank):
        if rank == 0:
            pruner.update(torch.ones(1), key=["a"])
        with pytest.raises(ValueError, match=r"^sharded=True got 1 keys for 2 ranks, one of which"):
            pruner.set_epoch(1)

    on_ranks(2, work, sharded=True, num_epochs=3)


def test_a_rule_that_cannot_be_sharded():
    with pytest.raises(TypeError, match=r"^sharded=True got policy=SetaPrune\("):
        infobatch.KeyedPruner(10, policy="seta", sharded=True)
