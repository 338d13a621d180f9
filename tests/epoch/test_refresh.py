"""Scores of samples that were left out, refreshed between epochs."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import infobatch
from infobatch.policies import POLICIES, KakurenboPrune
from infobatch.savings import FORWARD
from infobatch.tracks import Window
from numbered import Numbered
from rank_threads import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
SIZE = 60
REFRESHING = [name for name in POLICIES if POLICIES[name]().refreshes]


def losses_of(index, epoch):
    """Losses that tell samples and epochs apart; some are confident, and change which."""
    index = torch.as_tensor(index)
    return ((index * 7 + epoch * 13) % SIZE) / SIZE + 0.001 * epoch


def train_epoch(pruner, epoch, batch=8):
    for index in pruner.batch_sampler(batch):
        pruner.update(losses_of(index, epoch))


def test_left_out_is_what_the_plan_does_not_have():
    train_data = infobatch.InfoBatch(Numbered(SIZE), 6, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    for epoch in range(3):
        if not epoch:
            with pytest.raises(
                RuntimeError, match=r"left_out was read before epoch 0 began.*train_data\.plan"
            ):
                _ = train_data.left_out  # a property draws no plan
        for x, _ in loader:
            rest = set(range(SIZE)) - set(train_data.plan.order.tolist())
            assert set(train_data.left_out.tolist()) == rest, "in the middle of the epoch"
            train_data.update(losses_of(x.long(), epoch))
        assert set(train_data.left_out.tolist()) == rest, "and at its end"
        assert bool(rest) == bool(epoch)
    assert train_data.left_out.dtype is torch.int64


def test_scores_and_tracks_take_the_new_losses_and_nothing_else_changes():
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0, tracks=[Window(3)])
    train_epoch(pruner, 0)
    train_epoch(pruner, 1)
    left, before = pruner.left_out, pruner.scores
    assert len(left) == SIZE // 2
    pruner.refresh(losses_of(left[:10], 1), left[:10])
    pruner.refresh(losses_of(left[10:], 1), left[10:])
    assert torch.equal(pruner.scores[left], losses_of(left, 1).float())
    others = torch.ones(SIZE, dtype=torch.bool)
    others[left] = False
    assert torch.equal(pruner.scores[others], before[others])
    window = pruner.state_dict()["columns"]["window"]
    expected = torch.stack([losses_of(left, 0), losses_of(left, 1)], 1).float()
    assert torch.equal(window[left][:, 1:], expected)
    assert len(pruner.left_out) == 0, "nothing is left to refresh"
    train_epoch(pruner, 2)
    assert len(pruner.savings.epochs) == 3


def test_losses_that_are_not_finite_leave_the_score():
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0)
    train_epoch(pruner, 0)
    train_epoch(pruner, 1)
    left, before = pruner.left_out, pruner.scores
    losses = torch.full((len(left),), float("nan"))
    losses[0] = 0.5
    pruner.refresh(losses, left)
    assert pruner.scores[left[0]] == 0.5
    assert torch.equal(pruner.scores[left[1:]], before[left[1:]])
    assert pruner.savings.refreshed == len(left), "they were forwarded all the same"


def test_scores_where_they_are_not_the_losses():
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0)
    train_epoch(pruner, 0)
    train_epoch(pruner, 1)
    left = pruner.left_out
    ones, scores = torch.ones(len(left)), torch.rand(len(left))
    pruner.refresh(ones[:5], left[:5], scores=scores[:5])
    pruner.refresh(infobatch.PerSample(ones[5:], scores[5:]), left[5:])
    assert torch.equal(pruner.scores[left], scores)


def test_nothing_to_refresh_is_fine():
    pruner = infobatch.Pruner(SIZE, 6)
    train_epoch(pruner, 0)
    for index in pruner.left_out.split(8):  # an empty tensor has one part, which is empty
        pruner.refresh(torch.empty(len(index)), index)
    assert pruner.savings.refreshed == 0


def test_a_forward_pass_is_a_third_of_a_saved_one():
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0)
    train_epoch(pruner, 0)
    train_epoch(pruner, 1)
    assert pruner.savings.fraction == pytest.approx(30 / 120)
    left = pruner.left_out
    pruner.refresh(losses_of(left, 1), left)
    savings = pruner.savings
    assert (savings.saved, savings.refreshed, savings.epochs[1].refreshed) == (30, 30, 30)
    assert savings.fraction == pytest.approx((30 - 30 * FORWARD) / 120)
    assert savings.as_dict()["infobatch/samples_refreshed"] == 30
    assert str(savings).endswith(
        "2 epochs; 30 forwarded to refresh scores, a third of a pass each)"
    )


def test_costs_count_for_forward_passes_too():
    cost = np.arange(1, SIZE + 1, dtype=np.float32)
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0, cost=cost)
    train_epoch(pruner, 0)
    train_epoch(pruner, 1)
    left = pruner.left_out
    saved = cost[left.numpy()].sum() / cost.sum()
    assert pruner.savings.fraction == pytest.approx(saved / 2, rel=1e-5)
    pruner.refresh(losses_of(left, 1), left)
    assert pruner.savings.fraction == pytest.approx(saved * (1 - FORWARD) / 2, rel=1e-5)


def test_a_budget_pays_for_forward_passes():
    pruner = infobatch.Pruner(400, 20, policy="kakurenbo", save=0.3)
    for epoch in range(20):
        for index in pruner.batch_sampler(400):
            pruner.update(losses_of(index, epoch))
        left = pruner.left_out
        if len(left) and epoch < 19:  # after the last epoch nobody needs them
            pruner.refresh(losses_of(left, epoch), left)
    assert pruner.savings.refreshed > 0
    assert pruner.savings.fraction == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("name", REFRESHING)
def test_hidden_samples_return(name):
    """With refreshed scores, those left out are others from epoch to epoch."""
    pruner = infobatch.Pruner(SIZE, 20, policy=name)
    for epoch in range(20):
        # Every sample's loss rests for eight epochs and moves in the next eight.
        calm = (torch.arange(SIZE) * 16 // SIZE + epoch) % 16 < 8
        losses = torch.where(calm, 0.01, 0.5 + 0.4 * (-1) ** epoch) * torch.ones(SIZE)
        for index in pruner.batch_sampler(SIZE):
            pruner.update(losses[index])
        left = pruner.left_out
        if epoch > 8:
            assert 0 < len(left) < SIZE
        if len(left):
            pruner.refresh(losses[left], left)
    visited = set(pruner.plan.order.tolist())
    assert visited - set(range(SIZE)) == set()
    assert torch.isfinite(pruner.scores).all()
    assert len(set(pruner.scores.tolist())) == 2


def trained_by(name, *, refresh, epochs=10):
    """Train on losses half of which do not move; ``refresh``: whether left-out samples are forwarded."""
    pruner = infobatch.Pruner(SIZE, epochs, policy=name)
    for epoch in range(epochs):
        losses = torch.arange(SIZE) / SIZE
        losses[::2] += epoch % 2
        for index in pruner.batch_sampler(SIZE):
            pruner.update(losses[index])
        left = pruner.left_out
        if refresh and len(left):
            pruner.refresh(losses[left], left)
    return pruner


@pytest.mark.parametrize("name", REFRESHING)
def test_a_rule_that_relies_on_it_and_never_gets_it_says_so_once(name):
    with pytest.warns(UserWarning, match=r"refresh\(\) was not called") as raised:
        pruner = trained_by(name, refresh=False)
    messages = [str(warning.message) for warning in raised if "refresh()" in str(warning.message)]
    pruned = [epoch for epoch in pruner.savings.epochs if epoch.planned < epoch.full]
    assert len(pruned) > 2, "or once says little"
    first = pruned[0]
    assert messages == [
        f"refresh() was not called after epoch {first.epoch}, which left out "
        f"{first.full - first.planned} of 60 samples. {pruner.policy!r} expects a forward pass "
        "over them, without gradients, at the end of an epoch; otherwise their scores stay old, and "
        "samples that were left out may never return. After each epoch, compute the losses of the samples in "
        "left_out under torch.no_grad() and call refresh(losses, index); docs/policies.md has the "
        "loop."
    ]


@pytest.mark.parametrize("name", REFRESHING)
def test_no_warning_where_it_is_called_or_nothing_was_left_out(name):
    """(A warning is an error here.)"""
    assert trained_by(name, refresh=True).savings.refreshed
    before_pruning = max(1, POLICIES[name]().first_epoch)
    trained_by(name, refresh=False, epochs=before_pruning + 1)
    trained_by("random", refresh=False)


def test_a_resumed_run_is_told_as_well():
    first = infobatch.Pruner(SIZE, 6, policy="kakurenbo")
    train_epoch(first, 0)
    train_epoch(first, 1)
    second = infobatch.Pruner(SIZE, 6, policy="kakurenbo")
    second.load_state_dict(first.state_dict())
    with pytest.warns(
        UserWarning, match=r"refresh\(\) was not called after epoch 1, which left out"
    ):
        train_epoch(second, 2)


def test_extras_are_refreshed_with_the_losses():
    pruner = infobatch.Pruner(SIZE, 6, policy=KakurenboPrune(0.5, extras=True))
    for epoch in range(2):
        for index in pruner.batch_sampler(SIZE):
            sure = {"confidence": torch.ones(len(index)), "correct": torch.ones(len(index))}
            pruner.update(losses_of(index, epoch), extras=sure)
    left = pruner.left_out
    with pytest.raises(ValueError, match=r"refresh\(\) got no 'confidence' for its samples"):
        pruner.refresh(losses_of(left, 1), left)
    values = torch.rand(len(left))
    unsure = {"confidence": values, "correct": torch.zeros(len(left))}
    pruner.refresh(losses_of(left, 1), left, extras=unsure)
    columns = pruner.state_dict()["columns"]
    assert torch.equal(columns["confidence"][left], values)
    assert not columns["correct"][left].any()


@pytest.mark.parametrize("part", [0, 7, 30])
def test_a_state_taken_after_a_refresh_continues_with_the_same_bits(part):
    def trained(pruner, stop_after=None):
        for epoch in range(pruner.epoch, 6):
            train_epoch(pruner, epoch)
            left = pruner.left_out[: part if epoch % 2 else None]
            if len(left):
                pruner.refresh(losses_of(left, epoch), left)
            if epoch == stop_after:
                break
        return pruner

    options = {"policy": "random", "delta": 1.0, "tracks": [Window(3)]}
    straight = trained(infobatch.Pruner(SIZE, 6, **options))
    first = trained(infobatch.Pruner(SIZE, 6, **options), stop_after=2)
    second = infobatch.Pruner(SIZE, 6, **options)
    second.load_state_dict(first.state_dict())
    trained(second)
    assert second.savings == straight.savings
    columns = second.state_dict()["columns"]
    for column, values in straight.state_dict()["columns"].items():
        assert columns[column].numpy().tobytes() == values.numpy().tobytes(), column


def refreshed_alone(size, epochs, **options):
    pruner = infobatch.Pruner(size, epochs, **options)
    for epoch in range(epochs):
        for index in pruner.batch_sampler(8):
            pruner.update(losses_of(index, epoch))
        if len(left := pruner.left_out):
            pruner.refresh(losses_of(left, epoch), left)
    return pruner


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_refresh_their_parts_and_know_the_same(world_size, sharded):
    def work(pruner, rank):
        plans = []
        for epoch in range(5):
            for index in pruner.batch_sampler(8):
                pruner.update(losses_of(index, epoch))
            left = pruner.left_out
            if not sharded:
                left = left[rank :: pruner._ranks().world_size]
            pruner.refresh(losses_of(left, epoch), left)
            plans.append(pruner.plan.codes.tobytes())
            pruner.set_epoch(epoch + 1)
        return plans, pruner.scores, pruner.savings

    options = {"policy": "kakurenbo", "delta": 1.0}
    results = on_ranks(world_size, work, 61, 5, **options, sharded=sharded)
    assert results[0][2].refreshed > 0
    assert all(savings == results[0][2] for _, _, savings in results)
    if sharded:
        for rank, (_, scores, _) in enumerate(results):
            samples = torch.arange(rank, 61, world_size)
            assert torch.equal(scores, losses_of(samples, 4).float()), "all are of the last epoch"
        return
    alone = refreshed_alone(61, 5, **options)
    for plans, scores, savings in results:
        assert torch.equal(scores, alone.scores)
        assert savings == alone.savings
        assert plans == results[0][0]


def test_raises_in_the_middle_of_an_epoch_and_before_the_first():
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0)
    text = r"refresh\(\) was called in epoch {}, which has not ended. Expected it after the epoch's last"
    with pytest.raises(RuntimeError, match=text.format(0)):
        pruner.refresh(torch.ones(1), torch.tensor([0]))
    train_epoch(pruner, 0)
    walk = iter(pruner.sampler)
    next(walk)
    with pytest.raises(RuntimeError, match=text.format(1)):
        pruner.refresh(torch.ones(1), pruner.left_out[:1])
    pruner.update(torch.ones(1))
    with pytest.raises(RuntimeError, match=text.format(1)):
        pruner.refresh(torch.ones(1), pruner.left_out[:1])
    pruner.set_epoch(2)
    with pytest.raises(RuntimeError, match=text.format(2)):
        pruner.refresh(torch.ones(1), torch.tensor([0]))


def test_errors_of_the_arguments():
    pruner = infobatch.Pruner(SIZE, 6, policy="random", delta=1.0)
    train_epoch(pruner, 0)
    train_epoch(pruner, 1)
    left, visited = pruner.left_out, pruner.plan.order
    with pytest.raises(
        ValueError, match=rf"refresh\(index=…\) got sample {visited[0]} and 1 more, e"
    ):
        pruner.refresh(torch.ones(2), visited[:2])
    with pytest.raises(
        ValueError, match=r"refresh\(index=…\) got sample 99, expected samples that"
    ):
        pruner.refresh(torch.ones(1), torch.tensor([99]))
    with pytest.raises(
        ValueError, match=r"refresh\(index=…\) got .* expected a sample index for each"
    ):
        pruner.refresh(torch.ones(3), left[:2])
    with pytest.raises(ValueError, match=r"refresh\(\) got a scalar, expected one loss per sample"):
        pruner.refresh(torch.tensor(1.0), left[:1])
    with pytest.raises(
        ValueError, match=r"refresh\(scores=…\) got .*, expected one score per sample"
    ):
        pruner.refresh(torch.ones(2), left[:2], scores=torch.ones(3))
    pruner.refresh(torch.ones(2), left[:2])
    with pytest.raises(ValueError, match=r"and that were not refreshed yet: those of left_out"):
        pruner.refresh(torch.ones(2), left[1:3])
