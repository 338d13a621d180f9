"""Batches of nearly the same size: no small last batch."""

import pytest
import torch
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of

SIZE, EPOCHS, BATCH = 203, 5, 16


def epochs_of(pruner, *, shrink="epoch", stop=None):
    """Train; return the batches of each epoch."""
    trace = []
    for epoch in range(pruner.epoch, EPOCHS):
        for index in pruner.batch_sampler(BATCH, shrink=shrink, even=True):
            losses = torch.tensor([loss_of(sample, epoch) for sample in index])
            trace.append((epoch, index, pruner.update(losses).item()))
            if len(trace) == stop:
                return trace
    return trace


def test_sizes_differ_little_and_the_number_of_batches_is_the_usual_one():
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    for epoch in range(EPOCHS):
        plan = len(pruner.plan)
        batches = [len(index) for index in pruner.batch_sampler(BATCH, even=True)]
        usual = -(-plan // BATCH)
        assert len(batches) == len(pruner.batch_sampler(BATCH, even=True)) == usual
        assert sum(batches) == plan
        assert max(batches) <= BATCH
        assert max(batches) - min(batches) <= 1
        for index in pruner.batch_sampler(BATCH, even=True):
            pruner.update(torch.tensor([loss_of(sample, epoch) for sample in index]))
        pruner.set_epoch(epoch + 1)


def test_batches_that_shrink_are_as_many_as_on_all_data_and_nearly_alike():
    """Without ``even`` the last one stands for the last one on all data: 11 of 16 samples here."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    trace = epochs_of(pruner, shrink="batch")
    for epoch in range(EPOCHS):
        sizes = [len(index) for number, index, _ in trace if number == epoch]
        assert len(sizes) == -(-SIZE // BATCH)
        assert max(sizes) - min(sizes) <= 1
    assert pruner.savings.saved > 0


@pytest.mark.parametrize("shrink", ["epoch", "batch"])
def test_weighted_losses_add_up_to_those_of_all_data(shrink):
    """With losses of 1, the mean over an epoch's batches is 1 if they count in proportion."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    epochs_of(pruner, stop=13)
    for epoch in (1, 2):
        sampler = pruner.batch_sampler(BATCH, shrink=shrink, even=True)
        means = [(len(index), pruner.update(torch.ones(len(index)))) for index in sampler]
        total = sum(count * mean.item() for count, mean in means)
        if shrink == "batch":  # each mean is over the full batch that it stands for
            total = SIZE / len(means) * sum(mean.item() for _, mean in means)
        assert total == pytest.approx(SIZE, rel=0.02), epoch


@pytest.mark.parametrize("shrink", ["epoch", "batch"])
def test_resumed_anywhere_with_the_same_batches(shrink):
    straight = epochs_of(infobatch.Pruner(SIZE, EPOCHS, delta=1.0), shrink=shrink)
    for stop in range(1, len(straight), 5):
        first, second = (infobatch.Pruner(SIZE, EPOCHS, delta=1.0) for _ in range(2))
        trace = epochs_of(first, shrink=shrink, stop=stop)
        second.load_state_dict(first.state_dict())
        assert trace + epochs_of(second, shrink=shrink) == straight


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_loader(workers):
    data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    sampler = data.batch_sampler(BATCH, even=True)
    assert sampler.batch_size is None
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    for epoch in range(EPOCHS):
        sizes = []
        for numbers, _ in loader:
            sizes.append(len(numbers))
            data.update(loss_of(numbers, epoch))
        assert len(loader) == len(sizes)
    assert data.savings.made + data.savings.saved == SIZE * EPOCHS
    assert data.savings.saved > 0


def test_what_does_not_go_together():
    pruner = infobatch.Pruner(SIZE, EPOCHS)
    with pytest.raises(
        ValueError, match=r"batch_sampler\(even=True\) got drop_last=True, expected"
    ):
        pruner.batch_sampler(BATCH, even=True, drop_last=True)


@pytest.mark.parametrize("shrink", ["epoch", "batch"])
def test_an_update_that_is_left_out_is_noticed(shrink):
    """Batches differ by one sample, so the loader's look-ahead is counted in batches."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    batches = iter(pruner.batch_sampler(BATCH, shrink=shrink, even=True))
    for _ in range(3):
        pruner.update(torch.ones(len(next(batches))))
    next(batches)
    index = next(batches)
    with pytest.raises(RuntimeError, match="samples waiting for an update, but the loader reads"):
        pruner.update(torch.ones(len(index)))


def test_a_thousand_batches_are_as_even_as_ten():
    """One size for all but the last would leave a single sample for it."""
    pruner = infobatch.Pruner(16 * 1000 + 1, EPOCHS)
    sizes = [len(index) for index in pruner.batch_sampler(BATCH, even=True)]
    assert len(sizes) == 1001
    assert set(sizes) == {15, 16}
