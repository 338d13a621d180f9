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


# Steps whose samples are not simply those of a batch.


def accumulating(loader, step, accumulation, flush):
    """The condition of run_glue_no_trainer.py (with ``flush``) and of complete_nlp_example.py."""
    return step % accumulation == 0 or (flush and step == len(loader) - 1)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("size", "accumulation"), [(90, 2), (90, 4), (96, 4), (100, 3), (40, 8)])
def test_accumulation_that_steps_after_the_first_batch(size, accumulation, flush, given):
    train_data = infobatch.InfoBatch(Numbered(size), EPOCHS, delta=0.8)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    batches = range(len(loader))
    full = sum(accumulating(loader, step, accumulation, flush) for step in batches)
    optimizer = new_optimizer()
    inner = OneCycleLR(optimizer, 1.0, total_steps=full * EPOCHS)
    said = {"steps_per_epoch": full} if given else {}
    scheduler = infobatch.paced(inner, train_data, **said)
    for epoch in range(EPOCHS):
        train_data.set_epoch(epoch)
        for step, (x, _) in enumerate(loader):
            train_data.update(loss_of(x, epoch))
            if accumulating(loader, step, accumulation, flush):
                optimizer.step()
                scheduler.step()
        # Until an epoch has left some batches without a step, it is not known that there are such.
        assert inner.last_epoch in ((epoch + 1) * full - (not flush), (epoch + 1) * full)
    assert inner.last_epoch == EPOCHS * full
    assert train_data.savings.saved > 0


def test_whole_epochs_are_paced_as_without_pruning():
    """Also in the first epoch, where the number of steps is not known yet."""
    train_data = infobatch.InfoBatch(Numbered(90), EPOCHS, policy="none")
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    inner = LambdaLR(new_optimizer(), lambda step: 1 / (1 + step))
    scheduler = infobatch.paced(inner, train_data)
    calls = 0
    for step, (x, _) in enumerate(loader):
        train_data.update(loss_of(x, 0))
        if step % 4 == 0:
            inner.optimizer.step()
            scheduler.step()
            calls += 1
            assert inner.last_epoch == calls


def test_batches_of_nearly_equal_size():
    train_data = infobatch.InfoBatch(Numbered(100), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(8, even=True))
    optimizer = new_optimizer()
    inner = OneCycleLR(optimizer, 1.0, total_steps=13 * EPOCHS)
    scheduler = infobatch.paced(inner, train_data)
    for epoch in range(EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            scheduler.step()
        assert inner.last_epoch == 13 * (epoch + 1)
    assert train_data.savings.saved > 0


def test_batches_of_different_sizes():
    pruner = infobatch.Pruner(100, EPOCHS)
    optimizer = new_optimizer()
    scheduler = infobatch.paced(CosineAnnealingLR(optimizer, 100), pruner)
    index = torch.tensor(list(pruner.sampler))

    def train():
        for batch in index.split([8, 13, 9, 30, 12, 8, 8, 12]):
            pruner.update(loss_of(batch.float(), 0), index=batch)
            optimizer.step()
            scheduler.step()

    with pytest.raises(
        RuntimeError, match=r"groups of 9, 13, 30 samples, .* pass paced\(…, steps_per_epoch=…\)"
    ):
        train()


def test_a_single_call_in_the_first_epoch_shows_nothing():
    train_data = infobatch.InfoBatch(Numbered(40), 4)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    optimizer = new_optimizer()
    scheduler = infobatch.paced(CosineAnnealingLR(optimizer, 4), train_data)

    def train(epoch):
        for step, (x, _) in enumerate(loader):
            train_data.update(loss_of(x, epoch))
            if step % 8 == 0:
                optimizer.step()
                scheduler.step()

    train(0)
    with pytest.raises(
        RuntimeError, match=r"called 1 time\(s\) in the first epoch, .* 8 of its 40 "
    ):
        train(1)


# Resuming.


def linear(optimizer, total):
    """As transformers builds it: a function, which torch does not save."""
    return LambdaLR(optimizer, lambda step: min(step / 4, max(total - step, 0) / (total - 4)))


class Run:
    def __init__(self, build, batch, *, given=True, epochs=EPOCHS, accumulation=1, size=100):
        self.data = infobatch.InfoBatch(Numbered(size), epochs, delta=0.8)
        self.loader = DataLoader(self.data, batch, sampler=self.data.sampler)
        self.accumulation, self.batches = accumulation, 0
        self.full = -(-len(self.loader) // accumulation)
        self.optimizer = new_optimizer()
        self.inner = build(self.optimizer, self.full * epochs)
        said = {"steps_per_epoch": self.full} if given else {}
        self.scheduler = infobatch.paced(self.inner, self.data, **said)
        self.rates = {}  # by epoch, at its end

    def train(self, stop=None):
        for epoch in range(self.data.epoch, self.data.num_epochs):
            self.data.set_epoch(epoch)
            for step, (x, _) in enumerate(self.loader):
                self.data.update(loss_of(x, epoch))
                if accumulating(self.loader, step, self.accumulation, flush=True):
                    self.optimizer.step()
                    self.scheduler.step()
                self.batches += 1
                if self.batches == stop:
                    return self
            self.rates[epoch] = self.optimizer.param_groups[0]["lr"]
        return self

    def state(self):
        parts = (self.data, self.optimizer, self.scheduler)
        buffer = io.BytesIO()
        torch.save([part.state_dict() for part in parts], buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)

    def resume(self, state):
        for part, its_state in zip((self.data, self.optimizer, self.scheduler), state, strict=True):
            part.load_state_dict(its_state)
        return self


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize("name", [*SCHEDULERS, "linear"])
@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 8), (8, 5)])
@pytest.mark.parametrize("stop", [3, 20, 33])
def test_resuming_with_another_batch_size(name, before, after, stop):
    """The schedule was built for other steps: it continues at the same share of the run."""
    build = (SCHEDULERS | {"linear": linear})[name]
    straight = Run(build, after).train()
    state = Run(build, before).train(stop).state()
    resumed = Run(build, after).resume(state)
    now = resumed.scheduler.last_epoch / (EPOCHS * resumed.full)
    saved = state[2]["made"] / (EPOCHS * state[2]["steps_per_epoch"])
    assert now == pytest.approx(saved, abs=1 / (EPOCHS * min(resumed.full, 7)))
    resumed.train()
    for epoch, rate in resumed.rates.items():
        assert rate == pytest.approx(straight.rates[epoch], rel=1e-6, abs=1e-9)
    assert resumed.scheduler.last_epoch == EPOCHS * resumed.full


@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 8)])
@pytest.mark.parametrize("stop", [4, 20])
def test_a_state_that_contains_the_schedule_needs_no_number_of_steps(before, after, stop):
    """OneCycleLR saves its length: the saved schedule continues, in its own steps."""
    build = SCHEDULERS["one-cycle"]
    straight = Run(build, before, given=False).train()
    resumed = Run(build, after, given=False).resume(
        Run(build, before, given=False).train(stop).state()
    )
    if (stop, after) == (4, 8):  # in the first epoch, of which it has seen half
        with pytest.raises(RuntimeError, match="groups of 8, 16 samples"):
            resumed.train()
        return
    resumed.train()
    assert resumed.rates.items() >= {epoch: straight.rates[epoch] for epoch in range(3, 8)}.items()


@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 8), (8, 5)])
@pytest.mark.parametrize("stop", [4, 20])
def test_a_function_for_another_number_of_steps_raises(before, after, stop):
    state = Run(linear, before, given=False).train(stop).state()
    with pytest.raises(
        ValueError, match=r"another number of steps, .* paced\(…, steps_per_epoch=…\)"
    ):
        Run(linear, after, given=False).resume(state)


def test_twice_the_accumulation_for_half_the_batch_changes_nothing():
    straight = Run(linear, 16, given=False, size=96).train()
    state = Run(linear, 16, given=False, size=96).train(20).state()
    resumed = Run(linear, 8, given=False, size=96, accumulation=2).resume(state).train()
    for epoch, rate in resumed.rates.items():
        assert rate == pytest.approx(straight.rates[epoch])


@pytest.mark.parametrize("stop", [2, 5, 6, 7, 20])
def test_resuming_in_the_middle_of_an_accumulation(stop):
    """enumerate() begins at 0 again, so the first step follows a single batch once more."""
    state = Run(linear, 4, given=False, accumulation=4).train(stop).state()
    resumed = Run(linear, 4, given=False, accumulation=4).resume(state).train()
    assert resumed.scheduler.last_epoch == EPOCHS * resumed.full
    assert resumed.optimizer.param_groups[0]["lr"] == 0


def test_resuming_for_another_number_of_epochs():
    state = Run(SCHEDULERS["one-cycle"], 8).train(40).state()
    with pytest.raises(
        ValueError, match=r"over 8 epochs, and this one takes 12.*steps_per_epoch=…"
    ):
        Run(SCHEDULERS["one-cycle"], 8, given=False, epochs=12).resume(state)
    straight = Run(SCHEDULERS["one-cycle"], 8, epochs=12).train()
    resumed = Run(SCHEDULERS["one-cycle"], 8, epochs=12).resume(state).train()
    for epoch, rate in resumed.rates.items():
        assert rate == pytest.approx(straight.rates[epoch])


@pytest.mark.parametrize("build", [linear, SCHEDULERS["one-cycle"]])
def test_a_schedule_that_ends_long_before_the_last_epoch(build):
    """--max_train_steps of run_glue_no_trainer.py: declared 6 epochs, trained for 2."""
    train_data = infobatch.InfoBatch(Numbered(80), 6)
    with pytest.warns(UserWarning, match=r"ends before the 6 epochs of 10 steps .*max_train_steps"):
        infobatch.paced(build(new_optimizer(), 20), train_data, steps_per_epoch=10)
    scheduler = infobatch.paced(build(new_optimizer(), 20), train_data)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)

    def train(epoch):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            scheduler.optimizer.step()
            scheduler.step()

    train(0)
    with pytest.warns(UserWarning, match="ends before the 6 epochs of 10 steps"):
        train(1)
