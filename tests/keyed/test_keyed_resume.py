"""States of a KeyedPruner: between epochs, within one, and wrong ones."""

import io
import random

import numpy as np
import pytest
import torch

import infobatch
from infobatch.tracks import Visits
from keyed_runs import KEYS, batches, losses_of, train_epoch

OPTIONS = {"policy": "auto", "seed": 5, "tracks": [Visits()]}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def new(**options):
    return infobatch.KeyedPruner(6, **{**OPTIONS, **options})


def assert_same(pruner, other):
    assert torch.equal(pruner.scores(KEYS), other.scores(KEYS))
    for name, column in pruner._memory.rows.columns.items():
        assert np.array_equal(column, other._memory.rows.columns[name], equal_nan=True)
        assert column.dtype == other._memory.rows.columns[name].dtype
    assert pruner.savings == other.savings


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_between_epochs(stop):
    """Saved right after set_epoch(), or after the epoch's last update."""
    straight = new()
    expected = [train_epoch(straight, epoch) for epoch in range(6)]
    for when in ("begun", "ended"):
        stopped = new()
        for epoch in range(stop):
            train_epoch(stopped, epoch)
        if when == "begun":
            stopped.set_epoch(stop)
        resumed = new()
        resumed.load_state_dict(through_a_file(stopped.state_dict()))
        assert resumed.epoch == (stop if when == "begun" else max(stop - 1, 0))
        visits = [train_epoch(resumed, epoch) for epoch in range(stop, 6)]
        assert visits == expected[stop:]
        straight.set_epoch(6)
        resumed.set_epoch(6)
        assert_same(straight, resumed)


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("taken", [1, 5])
def test_within_an_epoch_a_loader_that_starts_again_reads_the_rest(epoch, taken):
    """In another order, too: every sample of the epoch once, as without the stop."""
    straight, stopped = new(), new()
    for before in range(epoch):
        train_epoch(straight, before)
        train_epoch(stopped, before)
    whole, _ = train_epoch(straight, epoch)
    stopped.set_epoch(epoch)
    kept = list(filter(stopped.keeps, KEYS))
    for batch in batches(kept)[:taken]:
        stopped.update(losses_of(batch, epoch), key=batch)
    resumed = new()
    resumed.load_state_dict(through_a_file(stopped.state_dict()))
    assert resumed.epoch == epoch
    assert resumed.savings == stopped.savings
    shuffled = random.Random(0).sample(KEYS, len(KEYS))
    rest, _ = train_epoch(resumed, epoch, shuffled)
    assert sorted(rest + kept[: 16 * taken]) == sorted(whole)
    straight.set_epoch(epoch + 1)
    resumed.set_epoch(epoch + 1)
    assert_same(straight, resumed)
    assert train_epoch(straight, epoch + 1) == train_epoch(resumed, epoch + 1)


@pytest.mark.parametrize("epoch", [0, 2])
def test_within_an_epoch_a_loader_that_resumes_itself(epoch):
    """It need not ask for what it has read ahead, and decides about the rest as before."""
    straight, stopped = new(), new()
    for before in range(epoch):
        train_epoch(straight, before)
        train_epoch(stopped, before)
    whole, _ = train_epoch(straight, epoch)
    stopped.set_epoch(epoch)
    for batch in batches(list(filter(stopped.keeps, KEYS)))[:3]:
        stopped.update(losses_of(batch, epoch), key=batch)
    resumed = new()
    resumed.load_state_dict(through_a_file(stopped.state_dict()), loader_resumes=True)
    assert list(filter(resumed.keeps, KEYS)) == whole
    for batch in batches(whole)[3:]:
        resumed.update(losses_of(batch, epoch), key=batch)
    straight.set_epoch(epoch + 1)
    resumed.set_epoch(epoch + 1)
    assert_same(straight, resumed)


def test_a_state_is_a_copy():
    pruner = new()
    train_epoch(pruner, 0)
    pruner.set_epoch(1)
    state = pruner.state_dict()
    before = through_a_file(state)
    train_epoch(pruner, 1)
    pruner.set_epoch(2)
    assert torch.equal(state["columns"]["score"], before["columns"]["score"])
    pruner.load_state_dict(state)  # back to an earlier epoch
    assert pruner.epoch == 1
    train_epoch(pruner, 1)
    pruner.set_epoch(2)
    assert torch.equal(state["columns"]["ema"], before["columns"]["ema"])


def test_the_seed_comes_with_the_state():
    pruner = new(seed=9)
    train_epoch(pruner, 0)
    pruner.set_epoch(1)
    kept = list(filter(pruner.keeps, KEYS))
    other = new(seed=1)
    other.load_state_dict(pruner.state_dict())
    assert other.seed == 9
    assert list(filter(other.keeps, KEYS)) == kept


def saved():
    pruner = new()
    train_epoch(pruner, 0)
    return pruner.state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("format"), r"got a state of format None, expected 'infobatch keyed 1'"),
        (lambda s: s.pop("columns"), r"got a damaged state: 'columns' is NoneType\."),
        (lambda s: s.update(epoch="1"), r"got a damaged state: 'epoch' is str\."),
        (lambda s: s["columns"].pop("score"), r"got a damaged state: it has no scores\."),
        (
            lambda s: s["visits"].pop("hashes"),
            r"got a damaged state: 'visits' is not what state_dict",
        ),
        (
            lambda s: s["visits"].update(hashes=s["visits"]["hashes"][1:]),
            r"got a damaged state: column 'score' does not have one row for each of the 199 keys",
        ),
        (
            lambda s: s["columns"].update(score=torch.rand(3)),
            r"got a damaged state: column 'score' does not have one row for each of the 0 keys",
        ),
        (
            lambda s: s.update(shards=2),
            r"got 1 state\(s\), expected 2: with sharded=True each rank",
        ),
    ],
)
def test_wrong_states(change, message):
    state = saved()
    change(state)
    with pytest.raises(ValueError, match=rf"^load_state_dict\(\) {message}"):
        new().load_state_dict(state)


def test_states_of_something_else():
    with pytest.raises(
        TypeError, match=r"^load_state_dict\(\) got int, expected the dictionary that"
    ):
        new().load_state_dict(3)
    with pytest.raises(ValueError, match="got a state of format None"):
        new().load_state_dict(infobatch.Pruner(10, 3).state_dict())


def test_another_rule_cannot_continue_within_an_epoch():
    pruner = new()
    train_epoch(pruner, 0)
    pruner.set_epoch(1)
    kept = list(filter(pruner.keeps, KEYS))[:5]
    pruner.update(losses_of(kept, 1), key=kept)
    state = pruner.state_dict()
    with pytest.raises(
        ValueError, match=r"^load_state_dict\(\) got a state from the middle of epoch 1, b"
    ):
        new(policy=infobatch.RandomPrune(0.5)).load_state_dict(state)
