"""Batches that shrink with the epoch: as many steps as with all data, and the same mean gradient."""

import itertools
from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from numbered import Numbered, loss_of
from rank_threads import on_ranks

SIZE, EPOCHS, BATCH = 101, 4, 8


def parts(workers=0, drop_last=False, size=SIZE, **options):
    train_data = infobatch.InfoBatch(Numbered(size), EPOCHS, delta=1.0, **options)
    batches = train_data.batch_sampler(BATCH, drop_last=drop_last, shrink="batch")
    return train_data, DataLoader(train_data, batch_sampler=batches, num_workers=workers)


def full_sizes(size=SIZE, drop_last=False):
    """The sizes of the batches of an epoch over all data."""
    whole = [BATCH] * (size // BATCH)
    return whole if drop_last or not size % BATCH else [*whole, size % BATCH]


def weights_of(plan):
    return dict(zip(plan.order.tolist(), plan.weights.tolist(), strict=True))


def weighted_sum(plan, samples, epoch):
    weights = weights_of(plan)
    return sum(weights[sample] * loss_of(sample, epoch) for sample in samples)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_as_many_steps_as_with_all_data_and_losses_by_hand(workers, drop_last):
    train_data, loader = parts(workers, drop_last)
    sizes = full_sizes(drop_last=drop_last)
    visits = {}
    for epoch in range(EPOCHS):
        assert len(loader) == len(sizes)
        samples = []
        for step, (x, _) in enumerate(loader):
            loss = train_data.update(loss_of(x, epoch))
            batch = x.long().tolist()
            by_hand = weighted_sum(train_data.plan, batch, epoch) / sizes[step]
            assert loss.item() == pytest.approx(by_hand, rel=1e-5)
            samples += batch
        assert step + 1 == len(sizes)
        assert len(loader) == len(sizes), "after the loop, too"
        assert samples == train_data.plan.order.tolist()[: len(samples)]
        if not drop_last:
            assert len(samples) == len(train_data.plan)
        visits.update(dict.fromkeys(samples, epoch))
    assert len(train_data.plan) < 0.8 * SIZE, "it was pruned"
    for sample, epoch in visits.items():
        assert train_data.scores[sample].item() == pytest.approx(loss_of(sample, epoch), abs=1e-6)
    assert [passes.epoch for passes in train_data.savings.epochs] == list(range(EPOCHS))


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_of_a_batch(workers):
    """Each part's mean is scaled like the batch's: accumulated by their sizes they add up to it."""
    train_data, loader = parts(workers)
    sizes = full_sizes()
    for epoch in range(2):
        for step, (x, _) in enumerate(loader):
            total = 0.0
            for part in x.split(3):
                total += train_data.update(loss_of(part, epoch)).item() * len(part) / len(x)
            by_hand = weighted_sum(train_data.plan, x.long().tolist(), epoch) / sizes[step]
            assert total == pytest.approx(by_hand, rel=1e-5)
    assert train_data.savings.epochs[1].made == len(train_data.plan) < SIZE


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_batches(workers):
    train_data, loader = parts(workers)
    sizes = full_sizes()
    for epoch in range(2):
        skipped = []
        for step, (x, _) in enumerate(loader):
            if step in (0, 4, 5, 12):
                train_data.skip()
                skipped += x.long().tolist()
                continue
            loss = train_data.update(loss_of(x, epoch))
            by_hand = weighted_sum(train_data.plan, x.long().tolist(), epoch) / sizes[step]
            assert loss.item() == pytest.approx(by_hand, rel=1e-5)
        visited = set(train_data.plan.order.tolist()) - set(skipped)
        for sample in visited:
            assert train_data.scores[sample].item() == pytest.approx(
                loss_of(sample, epoch), abs=1e-6
            )
        assert train_data.savings.epochs[epoch].unscored == len(skipped)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("left_out", [1, 5])
def test_an_update_that_was_left_out_is_noticed(workers, left_out):
    train_data, loader = parts(workers, size=401)
    for x, _ in loader:
        train_data.update(loss_of(x, 0))
    for step, (x, _) in enumerate(loader):
        if step < left_out:
            train_data.update(loss_of(x, 1))
        elif step > left_out:
            break
    with pytest.raises(
        RuntimeError, match=r"update\(\) found \d+ samples waiting .* call skip\(\)"
    ):
        train_data.update(loss_of(x, 1))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("skip_first", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_index_in_the_batch(workers, skip_first, backwards):
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    loader = DataLoader(
        infobatch.Indexed(Numbered(SIZE)),
        batch_sampler=pruner.batch_sampler(BATCH, shrink="batch"),
        num_workers=workers,
        collate_fn=infobatch.with_index(),
    )
    sizes = full_sizes()
    for epoch in range(2):
        batches = list(enumerate(loader))
        assert len(batches) == len(sizes)
        for count, (step, (index, (x, _))) in enumerate(batches[:: -1 if backwards else 1]):
            if skip_first and count == 0:
                pruner.skip(index=index)
                continue
            loss = pruner.update(loss_of(x, epoch), index=index)
            by_hand = weighted_sum(pruner.plan, index.tolist(), epoch) / sizes[step]
            assert loss.item() == pytest.approx(by_hand, rel=1e-5)
            again = pruner.reweight(loss_of(x, epoch), index=index)
            assert torch.equal(again, loss)
    assert pruner.savings.epochs[1].made == len(pruner.plan) < SIZE


def test_a_second_forward_gets_the_same_mean():
    train_data, loader = parts()
    for epoch in range(2):
        for x, _ in loader:
            loss = train_data.update(loss_of(x, epoch))
            assert torch.equal(train_data.reweight(loss_of(x, epoch)), loss)


def test_the_expected_gradient_of_an_epoch_is_the_full_data_s():
    """Over 300 seeds, for four gradients that have nothing to do with the scores."""
    size = 12 * BATCH
    rng = np.random.default_rng(0)
    scores = rng.exponential(size=size).astype(np.float32)
    gradients = torch.from_numpy(rng.normal(size=(size, 4)))
    full = gradients.sum(0) / BATCH  # the sum over the full epoch's steps
    sums, kept = [], []
    for seed in range(300):
        pruner = infobatch.Pruner(size, EPOCHS, delta=1.0, seed=seed, initial_scores=scores)
        parameter = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        steps = 0
        for batch in pruner.batch_sampler(BATCH, shrink="batch"):
            pruner.update(gradients[batch] @ parameter).backward()
            steps += 1
        assert steps == 12
        sums.append(parameter.grad)
        kept.append(pruner.savings.made)
    sums = torch.stack(sums)
    assert max(kept) < size
    z = (sums.mean(0) - full) / (sums.std(0) / sqrt(len(sums)))
    assert z.abs().max() < 4


def test_weights_of_every_batch_s_mean_add_up_to_the_full_epoch_s():
    """Losses of 1: each mean is the batch's weights over the full size; in all, full batches."""
    size = 12 * BATCH
    scores = np.random.default_rng(0).exponential(size=size).astype(np.float32)
    pruner = infobatch.Pruner(size, EPOCHS, delta=1.0, initial_scores=scores)
    means = [
        pruner.update(torch.ones(len(batch), dtype=torch.float64)).item()
        for batch in pruner.batch_sampler(BATCH, shrink="batch")
    ]
    assert sum(means) == pytest.approx(12, rel=1e-12)
    assert max(means) > 1 > min(means), "one by one they vary, as the weights do"


class Training:
    """A small real training that can be stopped after any step."""

    def __init__(self, drop_last, workers=0, batch_size=BATCH, shrink="batch"):
        torch.manual_seed(0)
        x = torch.randn(70, 4)
        y = x.sum(1) + torch.randn(70) ** 2
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.data = infobatch.InfoBatch(TensorDataset(x, y), EPOCHS, delta=0.75, seed=3)
        batches = self.data.batch_sampler(batch_size, drop_last=drop_last, shrink=shrink)
        self.loader = DataLoader(self.data, batch_sampler=batches, num_workers=workers)
        self.total = len(self.loader) * EPOCHS
        self.schedule = OneCycleLR(self.optimizer, 0.1, total_steps=self.total)
        self.trace = []

    def run(self, steps=None):
        for _ in range(self.data.epoch, EPOCHS):
            for x, y in self.loader:
                loss = self.data.update((self.model(x).squeeze(1) - y) ** 2)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.schedule.step()
                self.trace.append((len(x), loss.item()))
                if len(self.trace) == steps:
                    return

    def state(self):
        names = ("model", "optimizer", "data", "schedule")
        return {name: getattr(self, name).state_dict() for name in names}

    def load(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 7)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_stop_after_any_step(drop_last, workers, every):
    straight = check_all_stops(every, drop_last, workers)
    assert len(straight.trace) == straight.total == straight.schedule.last_epoch


@pytest.mark.parametrize("drop_last", [False, True])
def test_stop_after_any_step_of_odd_batches(drop_last):
    """The bits of a dot product depend on where its operands lie in memory."""
    check_all_stops(1, drop_last, 0, batch_size=5, shrink="epoch")


def check_all_stops(every, *args, **options):
    straight = Training(*args, **options)
    straight.run()
    assert straight.data.savings.saved > 0
    for stop in range(every, len(straight.trace), every):
        first, second = Training(*args, **options), Training(*args, **options)
        first.run(stop)
        second.load(first.state())
        second.run()
        assert first.trace + second.trace == straight.trace, f"stopped after step {stop}"
        for parameter, expected in zip(
            second.model.parameters(), straight.model.parameters(), strict=True
        ):
            assert torch.equal(parameter, expected)
        assert torch.equal(second.data.scores.nan_to_num(), straight.data.scores.nan_to_num())
        assert second.data.savings == straight.data.savings
    return straight


def test_stop_in_the_middle_of_a_batch():
    """The rest of the batch is scaled like its first part, and the later batches are the same."""
    train_data, loader = parts()
    for x, _ in loader:
        train_data.update(loss_of(x, 0))
    batches = []
    for step, (x, _) in enumerate(loader):
        if step == 3:
            train_data.update(loss_of(x[:2], 1))
            break
        train_data.update(loss_of(x, 1))
    rest = x[2:].long().tolist()
    assert rest
    other, other_loader = parts()
    other.load_state_dict(train_data.state_dict())
    assert len(other_loader) == len(full_sizes()) - 3
    sizes = full_sizes()[3:]
    factor = len(x) / BATCH
    for step, (x, _) in enumerate(other_loader):
        samples = x.long().tolist()
        loss = other.update(loss_of(x, 1)).item()
        by_hand = weighted_sum(other.plan, samples, 1)
        if step == 0:
            assert samples == rest
            assert loss == pytest.approx(by_hand / len(rest) * factor, rel=1e-5)
        else:
            assert loss == pytest.approx(by_hand / sizes[step], rel=1e-5)
        batches.append(samples)
    assert len(batches) == len(sizes)
    assert other.epoch == 1
    assert other.savings.epochs[1].made == len(other.plan)


# Several ranks.


def epochs_on(pruner, size, drop_last):
    """Train on losses of sample and epoch alone; return each epoch's plan, batches and means."""
    history = []
    batches = pruner.batch_sampler(size, drop_last=drop_last, shrink="batch")
    for epoch in range(3):
        visited, means = [], []
        for batch in batches:
            means.append(pruner.update(loss_of(torch.tensor(batch).float(), epoch)).item())
            visited.append(batch)
        history.append((pruner.plan, visited, means))
    return history, pruner.scores


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_averaging_over_the_ranks_divides_by_the_full_global_batch(world_size, drop_last, sharded):
    results = on_ranks(
        world_size, lambda p, rank: epochs_on(p, 4, drop_last), 103, 3, delta=1.0, sharded=sharded
    )
    per_rank = -(-103 // world_size)
    steps = per_rank // 4 if drop_last else -(-per_rank // 4)
    full = [  # positions below 103 // W are real on every rank, one more on some
        sum(min(4 * step + 4, n) - min(4 * step, n) for n in rank_sizes(103, world_size))
        for step in range(steps)
    ]
    for epoch in range(3):
        assert {len(history[epoch][2]) for history, _ in results} == {steps}
        means = np.mean([history[epoch][2] for history, _ in results], axis=0)
        sums, counted = np.zeros(steps), set()
        for history, _ in results:
            plan, visited, _ = history[epoch]
            for step, batch in enumerate(visited):
                fresh = [sample for sample in batch if sample not in counted]  # not a repeat
                counted.update(fresh)
                sums[step] += weighted_sum(plan, fresh, epoch)
        assert means == pytest.approx(sums / full, rel=1e-5)
        if epoch and not drop_last:
            assert len(counted) == sum(len(history[epoch][0]) for history, _ in results) / (
                1 if sharded else world_size
            )
            assert len(counted) < 103
    if not sharded:
        alone = on_ranks(1, lambda p, rank: epochs_on(p, 4, False), 103, 3, delta=1.0)[0][1]
        if not drop_last:
            assert all(torch.equal(scores, alone) for _, scores in results)


@pytest.mark.parametrize(("size", "rank_of_high_losses"), [(50, 0), (50, 1), (7, 0), (7, 1)])
def test_a_shard_of_which_nothing_is_left_out(size, rank_of_high_losses):
    """Its batches shrink as well: they are part of global batches that do."""
    scores = torch.linspace(0.1, 0.9, size)
    scores[rank_of_high_losses::2] += 10

    def one_epoch(pruner, rank):
        means, sums = [], []
        for batch in pruner.batch_sampler(4, shrink="batch"):
            sums.append(weighted_sum(pruner.plan, set(batch) - set(visited[rank]), 0))
            visited[rank] += batch
            means.append(pruner.update(loss_of(torch.tensor(batch).float(), 0)).item())
        return len(pruner.plan), means, sums

    visited = [[], []]
    options = {"delta": 1.0, "sharded": True, "initial_scores": scores}
    results = on_ranks(2, one_epoch, size, 3, **options)
    sizes = rank_sizes(size, 2)
    kept, means, sums = (np.array(column) for column in zip(*results, strict=True))
    assert kept[rank_of_high_losses] == sizes[rank_of_high_losses]
    assert kept[1 - rank_of_high_losses] < sizes[1 - rank_of_high_losses]
    full = [
        sum(min(start + 4, n) - min(start, n) for n in sizes) for start in range(0, max(sizes), 4)
    ]
    assert means.mean(0) == pytest.approx(sums.sum(0) / full, rel=1e-5)


def rank_sizes(size, world_size):
    return [len(range(rank, size, world_size)) for rank in range(world_size)]


# Schedules.


def schedule_for(total_steps):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    return optimizer, OneCycleLR(optimizer, 1.0, total_steps=total_steps)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.parametrize("use_paced", [False, True])
@pytest.mark.parametrize("size", [40, 101, 138])
def test_a_schedule_ends_exactly(size, drop_last, warm_start, use_paced):
    """One step per batch is right without pacing; pacing it does no harm."""
    scores = np.random.default_rng(0).exponential(size=size) if warm_start else None
    train_data, loader = parts(drop_last=drop_last, size=size, initial_scores=scores)
    per_epoch = len(full_sizes(size, drop_last))
    optimizer, schedule = schedule_for(per_epoch * EPOCHS)
    stepped = infobatch.paced(schedule, train_data) if use_paced else schedule
    for epoch in range(EPOCHS):
        for step, (x, _) in enumerate(loader, 1):
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            stepped.step()
            assert schedule.last_epoch == epoch * per_epoch + step
        assert schedule.last_epoch == per_epoch * (epoch + 1)
    assert train_data.savings.saved > 0
    assert (train_data.savings.epochs[0].planned < size) is warm_start


def test_pacing_by_steps_per_epoch():
    train_data, loader = parts()
    optimizer, schedule = schedule_for(13 * EPOCHS)
    stepped = infobatch.paced(schedule, train_data, steps_per_epoch=13)
    for epoch in range(EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            stepped.step()
        assert schedule.last_epoch == 13 * (epoch + 1)
        assert train_data.virtual_step(13) == 13 * (epoch + 1)


# What raises, and what a loader sees.


def test_another_way_to_shrink():
    train_data, _ = parts()
    with pytest.raises(
        ValueError,
        match=r"batch_sampler\(shrink=…\) got 'nonsense', expected 'epoch' \(a pruned epoch has fewer "
        r"batches\) or 'batch' \(it has as many, each smaller\)\.",
    ):
        train_data.batch_sampler(8, shrink="nonsense")


def test_batch_sizes_that_vary_are_not_promised():
    train_data, loader = parts()
    assert loader.batch_sampler.batch_size is None
    assert train_data.batch_sampler(8).batch_size == 8
    assert loader.batch_sampler.drop_last is False


def test_batches_too_small_to_shrink():
    scores = np.arange(40, dtype=np.float32)
    pruner = infobatch.Pruner(40, EPOCHS, delta=1.0, initial_scores=scores)
    batches = pruner.batch_sampler(1, shrink="batch")
    with pytest.raises(ValueError, match="cannot divide 30 samples among the 40 batches"):
        len(batches)
    with pytest.raises(ValueError, match="cannot divide 30 samples among the 40 batches"):
        next(iter(batches))


def test_epochs_that_shrink_are_the_default():
    train_data, _ = parts()
    batches = train_data.batch_sampler(BATCH)
    for epoch in range(2):
        for batch in batches:
            train_data.update(loss_of(torch.tensor(batch).float(), epoch))
    assert len(batches) == -(-len(train_data.plan) // BATCH) < len(full_sizes())


def test_a_peek_and_a_break_change_nothing():
    train_data, loader = parts()
    for epoch in range(3):
        first = next(iter(loader))[0]
        for step, (x, _) in enumerate(itertools.islice(loader, 5)):
            if step == 0:
                assert torch.equal(x, first)
            train_data.update(loss_of(x, epoch))
        assert train_data.epoch == epoch
    assert len(loader) == len(full_sizes())
