"""Paced schedules: at each epoch boundary where full-data training would be, and at the end exactly."""

import io

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of

EPOCHS = 8


def sequential(optimizer, total):
    warm = LinearLR(optimizer, 0.1, total_iters=total // 4)
    cool = CosineAnnealingLR(optimizer, total - total // 4)
    return SequentialLR(optimizer, [warm, cool], milestones=[total // 4])


SCHEDULERS = {
    "one-cycle": lambda optimizer, total: OneCycleLR(optimizer, 1.0, total_steps=total),
    "cosine": CosineAnnealingLR,
    "multi-step": lambda optimizer, total: MultiStepLR(optimizer, [total // 3, total // 2]),
    "lambda": lambda optimizer, total: LambdaLR(optimizer, lambda step: 1 - step / total / 2),
    "sequential": sequential,
}


def new_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)


def full_data_rates(name, steps_per_epoch):
    """The learning rates that full-data training has at its epoch boundaries."""
    optimizer = new_optimizer()
    scheduler = SCHEDULERS[name](optimizer, steps_per_epoch * EPOCHS)
    rates = []
    for _ in range(EPOCHS):
        for _ in range(steps_per_epoch):
            optimizer.step()
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.filterwarnings(
    "ignore:The epoch parameter in `scheduler.step"
)  # torch 2.6's SequentialLR
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("delta", [0.7, 1.0])
@pytest.mark.parametrize(
    ("workers", "drop_last", "size"),
    [(0, False, 100), (0, True, 100), (2, True, 100), (0, True, 96)],
)
def test_epoch_boundaries(name, delta, workers, drop_last, size):
    train_data = infobatch.InfoBatch(Numbered(size), EPOCHS, delta=delta)
    loader = DataLoader(
        train_data, 8, sampler=train_data.sampler, drop_last=drop_last, num_workers=workers
    )
    steps_per_epoch = len(loader)
    optimizer = new_optimizer()
    inner = SCHEDULERS[name](optimizer, steps_per_epoch * EPOCHS)
    scheduler = infobatch.paced(inner, train_data)
    rates = []
    for epoch in range(EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        assert inner.last_epoch == (epoch + 1) * steps_per_epoch
        assert scheduler.get_last_lr() == [rates[-1]]
    assert train_data.savings.saved > 0
    assert rates == full_data_rates(name, steps_per_epoch)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("delta", [0.7, 1.0])
def test_gradient_accumulation(flush, delta):
    """One step for four batches; the last batches of an epoch get one of their own, or none."""
    train_data = infobatch.InfoBatch(Numbered(90), EPOCHS, delta=delta)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    full = -(-len(loader) // 4) if flush else len(loader) // 4
    optimizer = new_optimizer()
    inner = OneCycleLR(optimizer, 1.0, total_steps=full * EPOCHS)
    scheduler = infobatch.paced(inner, train_data)
    for epoch in range(EPOCHS):
        train_data.set_epoch(epoch)
        batches = len(loader)
        for step, (x, _) in enumerate(loader, 1):
            train_data.update(loss_of(x, epoch))
            if step % 4 == 0 or (flush and step == batches):
                optimizer.step()
                scheduler.step()
        assert inner.last_epoch == (epoch + 1) * full
    assert train_data.savings.saved > 0


def test_steps_per_epoch_may_be_said():
    train_data = infobatch.InfoBatch(Numbered(40), 4, delta=1.0)
    train_data.load_state_dict(trained_for_an_epoch().state_dict())
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    optimizer = new_optimizer()
    inner = CosineAnnealingLR(optimizer, 20)
    scheduler = infobatch.paced(inner, train_data, steps_per_epoch=5)
    for epoch in range(1, 4):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            scheduler.step()
        assert inner.last_epoch == 5 * (epoch + 1)


def trained_for_an_epoch():
    train_data = infobatch.InfoBatch(Numbered(40), 4, delta=1.0)
    for x, _ in DataLoader(train_data, 8, sampler=train_data.sampler):
        train_data.update(loss_of(x, 0))
    return train_data


def test_the_length_asked_for_inside_the_loop_does_not_disturb():
    """After the last update, too, where a loop logs it."""
    train_data = infobatch.InfoBatch(Numbered(40), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    optimizer = new_optimizer()
    inner = OneCycleLR(optimizer, 1.0, total_steps=4 * 5)
    scheduler = infobatch.paced(inner, train_data)
    for epoch in range(4):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            len(loader)
            optimizer.step()
            scheduler.step()
        assert inner.last_epoch == 5 * (epoch + 1)


def test_a_first_epoch_that_was_broken_off_still_teaches():
    train_data = infobatch.InfoBatch(Numbered(42), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    optimizer = new_optimizer()
    inner = CosineAnnealingLR(optimizer, 24)
    scheduler = infobatch.paced(inner, train_data)
    for epoch in range(4):
        for step, (x, _) in enumerate(loader):
            if epoch == 0 and step == 2:
                break
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            scheduler.step()
    assert inner.last_epoch == 4 * 6


@pytest.mark.parametrize("skipped", [(2,), (0, 4), (9,)])
def test_steps_left_out_in_the_first_epoch(skipped):
    """The loop of usage.md: skip() and continue, without a step of the scheduler."""
    train_data = infobatch.InfoBatch(Numbered(80), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    optimizer = new_optimizer()
    inner = OneCycleLR(optimizer, 1.0, total_steps=40)
    scheduler = infobatch.paced(inner, train_data)
    for epoch in range(4):
        for step, (x, _) in enumerate(loader):
            if epoch == 0 and step in skipped:
                train_data.skip()
                continue
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            scheduler.step()
        if epoch:
            assert inner.last_epoch == 10 * (epoch + 1)


def test_a_step_before_the_first_update_advances_nothing():
    train_data = infobatch.InfoBatch(Numbered(80), 4)
    inner = OneCycleLR(new_optimizer(), 1.0, total_steps=40)
    scheduler = infobatch.paced(inner, train_data)
    inner.optimizer.step()
    scheduler.step()
    assert inner.last_epoch == 0
    for x, _ in DataLoader(train_data, 8, sampler=train_data.sampler):
        train_data.update(loss_of(x, 0))
        scheduler.step()
    assert inner.last_epoch == 10


@pytest.mark.parametrize("stop", [3, 5, 7, 11])
def test_state(stop):
    def run(scheduler, optimizer, train_data, steps):
        loader = DataLoader(train_data, 8, sampler=train_data.sampler)
        trace = []
        for epoch in range(train_data.epoch, 4):
            for x, _ in loader:
                train_data.update(loss_of(x, epoch))
                optimizer.step()
                scheduler.step()
                trace.append(optimizer.param_groups[0]["lr"])
                if len(trace) == steps:
                    return trace
        return trace

    def new():
        train_data = infobatch.InfoBatch(Numbered(40), 4, delta=1.0)
        optimizer = new_optimizer()
        inner = OneCycleLR(optimizer, 1.0, total_steps=20)
        return infobatch.paced(inner, train_data), optimizer, train_data

    straight = run(*new(), steps=None)
    first = new()
    trace = run(*first, steps=stop)
    buffer = io.BytesIO()
    torch.save([part.state_dict() for part in first], buffer)
    buffer.seek(0)
    second = new()
    for part, state in zip(second, torch.load(buffer, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert trace + run(*second, steps=None) == straight
    assert second[0].last_epoch == 20
    assert second[0].optimizer is second[1]
