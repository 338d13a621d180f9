"""Stopping after any step and resuming gives the same bits as not stopping."""

import io

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.distributed import Checkpointable
from numbered import Numbered, loss_of, run_epoch

EPOCHS, SIZE, BATCH = 6, 70, 8


def saved_and_loaded(state):
    """Through a file's bytes, without unpickling code."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


class Training:
    """A small real training, written as a user would, that can be stopped after any step."""

    def __init__(self, *, workers, drop_last, use_set_epoch, batch_sampler=False):
        torch.manual_seed(0)
        x = torch.randn(SIZE, 4)
        y = x.sum(1) + torch.randn(SIZE) ** 2
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.data = infobatch.InfoBatch(TensorDataset(x, y, torch.arange(SIZE)), EPOCHS, seed=3)
        options = {"num_workers": workers, "persistent_workers": workers > 0}
        if batch_sampler:
            batches = self.data.batch_sampler(BATCH, drop_last=drop_last)
            self.loader = DataLoader(self.data, batch_sampler=batches, **options)
        else:
            options |= {"sampler": self.data.sampler, "drop_last": drop_last}
            self.loader = DataLoader(self.data, BATCH, **options)
        inner = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 0.1, total_steps=len(self.loader) * EPOCHS
        )
        self.schedule = infobatch.paced(inner, self.data)
        self.use_set_epoch = use_set_epoch
        self.epoch = 0
        self.trace = []

    def run(self, steps=None, after_epoch=None):
        """Train on; stop after some more steps, or after the loop of one epoch."""
        while self.epoch < EPOCHS:
            if self.use_set_epoch:
                self.data.set_epoch(self.epoch)
            for x, y, index in self.loader:
                losses = (self.model(x).squeeze(1) - y) ** 2
                loss = self.data.update(losses)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.schedule.step()
                self.trace.append((self.epoch, index.tolist(), loss.item()))
                if steps is not None and len(self.trace) == steps:
                    return
            self.epoch += 1
            if after_epoch is not None and self.epoch == after_epoch:
                return

    def state(self):
        return saved_and_loaded(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "data": self.data.state_dict(),
                "schedule": self.schedule.state_dict(),
                "epoch": self.epoch,
            }
        )

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.data.load_state_dict(state["data"])
        self.schedule.load_state_dict(state["schedule"])
        # With set_epoch the loop says where it is; without, the data does.
        self.epoch = state["epoch"] if self.use_set_epoch else self.data.epoch

    def assert_same_end(self, other):
        for name, value in self.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[name])
        assert torch.equal(self.data.scores.nan_to_num(), other.data.scores.nan_to_num())
        assert self.data.savings == other.data.savings
        assert self.schedule.last_epoch == other.schedule.last_epoch


def settings(workers, drop_last, use_set_epoch):
    return {"workers": workers, "drop_last": drop_last, "use_set_epoch": use_set_epoch}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("use_set_epoch", [False, True])
def test_stop_after_every_step(drop_last, use_set_epoch):
    check_all_stops(settings(0, drop_last, use_set_epoch), every=1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_stop_after_every_step_of_a_batch_sampler(drop_last):
    check_all_stops({**settings(0, drop_last, False), "batch_sampler": True}, every=1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_stop_after_every_few_steps_with_workers(drop_last):
    check_all_stops(settings(2, drop_last, False), every=4)


@pytest.mark.slow
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("use_set_epoch", [False, True])
def test_stop_after_every_step_with_workers(drop_last, use_set_epoch):
    check_all_stops(settings(2, drop_last, use_set_epoch), every=1)


def check_all_stops(options, every):
    straight = Training(**options)
    straight.run()
    assert straight.data.savings.saved > 0
    assert {epoch for epoch, *_ in straight.trace} == set(range(EPOCHS))
    for stop in range(every, len(straight.trace), every):
        first = Training(**options)
        first.run(steps=stop)
        state = first.state()
        second = Training(**options)
        second.load(state)
        second.run()
        assert first.trace + second.trace == straight.trace, f"stopped after step {stop}"
        second.assert_same_end(straight)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("use_set_epoch", [False, True])
def test_stop_between_epochs(workers, drop_last, use_set_epoch):
    """The usual checkpoint, after an epoch's loop: no epoch is lost or repeated."""
    options = settings(workers, drop_last, use_set_epoch)
    straight = Training(**options)
    straight.run()
    for epochs in (1, 2, 4, 5):
        first = Training(**options)
        first.run(after_epoch=epochs)
        second = Training(**options)
        second.load(first.state())
        second.run()
        assert first.trace + second.trace == straight.trace
        second.assert_same_end(straight)


def test_taking_a_state_changes_nothing():
    options = settings(0, False, False)
    straight, watched = Training(**options), Training(**options)
    straight.run()
    for step in range(1, len(straight.trace) + 1):
        watched.run(steps=step)
        watched.load(watched.state())  # into the very same objects
    assert watched.trace == straight.trace


def test_a_state_kept_in_memory_is_a_snapshot():
    pruner = infobatch.Pruner(20, 4)
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index)]))
    state = pruner.state_dict()
    before = state["columns"]["score"].clone()
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index) + 100]))
    pruner.set_epoch(2)
    assert torch.equal(state["columns"]["score"], before)


def test_resume_with_the_index_in_the_batch():
    """Read out of order, stopped in mid-epoch: what is left is what was not visited."""
    pruner = infobatch.Pruner(60, 4, delta=1.0)
    for epoch in range(2):
        batches = list(torch.tensor(list(pruner.sampler)).split(7))
        if epoch == 1:
            done = batches[::2]
            planned = pruner.plan.order.tolist()
            for index in done:
                pruner.update(loss_of(index.float(), epoch), index=index)
            break
        for index in batches:
            pruner.update(loss_of(index.float(), epoch), index=index)
    other = infobatch.Pruner(60, 4, delta=1.0)
    other.load_state_dict(saved_and_loaded(pruner.state_dict()))
    assert other.epoch == 1
    visited = {i for index in done for i in index.tolist()}
    left = list(other.sampler)
    assert left == [i for i in planned if i not in visited]
    for index in torch.tensor(left).split(7):
        other.update(loss_of(index.float(), 1), index=index)
    for sample in planned:
        assert other.scores[sample].item() == pytest.approx(loss_of(sample, 1), abs=1e-6)
    assert other.savings.epochs[1].made == len(planned)
    assert other.state_dict()["epoch"] == 2


def test_skips_survive_a_resume():
    train_data = infobatch.InfoBatch(Numbered(40), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    for step, (x, _) in enumerate(loader):
        if step == 1:
            train_data.skip()
        else:
            train_data.update(loss_of(x, 0))
        if step == 2:
            break
    other = infobatch.InfoBatch(Numbered(40), 4, delta=1.0)
    other.load_state_dict(train_data.state_dict())
    assert len(other.sampler) == 16
    assert other.savings.unscored == 8
    assert other.scores.isnan().sum() == 24


def test_a_longer_run_may_go_on_from_the_end_of_an_epoch():
    pruner = infobatch.Pruner(20, 4)
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index)]))
    longer = infobatch.Pruner(20, 40, policy="quantile", delta=1.0)
    longer.load_state_dict(pruner.state_dict())
    assert longer.epoch == 1
    assert torch.equal(longer.scores, pruner.scores)


@pytest.mark.parametrize("broken_off", [False, True])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_counter_that_begins_anew_after_a_resume(at_the_end, broken_off):
    """Fabric counts iterations from 0 in every process; the epochs continue where the state was."""
    train_data = infobatch.InfoBatch(Numbered(40), 6, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    for epoch in range(3):
        train_data.set_epoch(epoch)
        for step, (x, _) in enumerate(loader):
            train_data.update(loss_of(x, epoch))
            if step == 1 and (broken_off or (epoch == 2 and not at_the_end)):
                break
    other = infobatch.InfoBatch(Numbered(40), 6, delta=1.0)
    other.load_state_dict(saved_and_loaded(train_data.state_dict()))
    begun = other.epoch
    assert begun == (3 if at_the_end and not broken_off else 2)
    loader = DataLoader(other, 8, sampler=other.sampler)
    for count, epoch in enumerate(range(begun, 6)):
        for _ in range(2):  # saying it twice changes nothing
            other.set_epoch(count)
        assert other.epoch == epoch
        assert run_epoch(other, loader, epoch)
    assert [e.epoch for e in other.savings.epochs] == list(range(6))


def test_sizes_of_gradients_survive_a_distributed_checkpoint():
    """Their column is there only once sizes are reported, while names in such a checkpoint are fixed."""

    def trained():
        pruner = infobatch.Pruner(40, 4, policy="auto")
        losses = torch.linspace(0.1, 2, 40)
        sample = infobatch.PerSample(losses, losses, {"gradient": losses.square()})
        pruner.update(sample, index=torch.arange(40))
        pruner.set_epoch(1)
        return pruner

    saved, fresh = trained(), infobatch.Pruner(40, 4, policy="auto")
    state, empty = (Checkpointable(pruner).state_dict() for pruner in (saved, fresh))
    assert state["columns"].keys() == empty["columns"].keys()
    Checkpointable(fresh).load_state_dict(state)
    assert torch.equal(fresh.plan.order, saved.plan.order)
    again = infobatch.Pruner(40, 4, policy="auto")
    Checkpointable(again).load_state_dict(empty)
    assert "gradient" not in again.state_dict()["columns"]
