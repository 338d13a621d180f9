"""Batches of nearly the same size: no small last batch."""

import pytest
import torch
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of

SIZE, EPOCHS, BATCH = 203, 5, 16


def epochs_of(pruner, *, stop=None, trace=None):
    """Train; return the batches of each epoch."""
    trace = [] if trace is None else trace
    for epoch in range(pruner.epoch, EPOCHS):
        for index in pruner.batch_sampler(BATCH, even=True):
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
        assert max(batches) - min(batches) < usual
        for index in pruner.batch_sampler(BATCH, even=True):
            pruner.update(torch.tensor([loss_of(sample, epoch) for sample in index]))
        pruner.set_epoch(epoch + 1)


def test_resumed_anywhere_with_the_same_batches():
    straight = epochs_of(infobatch.Pruner(SIZE, EPOCHS, delta=1.0))
    for stop in range(1, len(straight), 5):
        first, second = (infobatch.Pruner(SIZE, EPOCHS, delta=1.0) for _ in range(2))
        trace = epochs_of(first, stop=stop)
        second.load_state_dict(first.state_dict())
        assert trace + epochs_of(second) == straight


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
    with pytest.raises(ValueError, match=r"batch_sampler\(even=True\) got drop_last=True"):
        pruner.batch_sampler(BATCH, even=True, drop_last=True)
    with pytest.raises(ValueError, match=r"shrink='batch', expected"):
        pruner.batch_sampler(BATCH, even=True, shrink="batch")
