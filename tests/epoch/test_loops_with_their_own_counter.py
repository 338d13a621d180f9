"""Loops that count epochs from their resume, and loops that leave an epoch on purpose."""

import pytest
from torch.utils.data import DataLoader

import infobatch
from infobatch.trainers import leave_epoch
from numbered import Numbered, run_epoch

SIZE, EPOCHS = 61, 5


def parts(workers=0):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    return train_data, DataLoader(train_data, 8, sampler=train_data.sampler, num_workers=workers)


def state_after(epochs, batches=0):
    """The state of a run that was stopped in its epoch ``epochs``."""
    train_data, loader = parts()
    for epoch in range(epochs):
        run_epoch(train_data, loader, epoch)
    for made, (x, _) in enumerate(loader):
        if made == batches:
            break
        train_data.update(x)
    return train_data.state_dict()


@pytest.mark.parametrize(("epochs", "batches"), [(0, 3), (1, 2), (2, 0), (2, 2), (4, 1)])
def test_a_first_zero_counts_from_the_resume(epochs, batches):
    state = state_after(epochs, batches)
    by_itself, loader = parts()
    by_itself.load_state_dict(state)
    expected = [run_epoch(by_itself, loader, epoch) for epoch in range(epochs, EPOCHS)]

    counted, loader = parts()
    counted.load_state_dict(state)
    visited = []
    for count in range(EPOCHS - epochs):
        counted.set_epoch(count)
        counted.sampler.set_epoch(count)  # saying it twice changes nothing
        assert counted.epoch == epochs + count
        visited.append(run_epoch(counted, loader, epochs + count))
    assert visited == expected
    assert counted.savings == by_itself.savings


def test_the_end_of_the_first_epoch_is_that_epoch_s():
    """A loop that continues its count and one that begins again ask the same; the first is assumed."""
    train_data, loader = parts()
    train_data.load_state_dict(state_after(1))
    train_data.set_epoch(0)
    assert list(loader) == []
    train_data.set_epoch(1)
    assert len(run_epoch(train_data, loader, 1)) == len(train_data.plan)


@pytest.mark.parametrize("batches", [6, 5])
def test_leaving_an_epoch_near_its_end_on_purpose(batches):
    """The loader's workers have read to the end; only a right count makes the losses count."""
    train_data, loader = parts(workers=2)
    for made, (x, _) in enumerate(loader):
        if made == 6:
            break
        train_data.update(x + 1)
    leave_epoch(train_data, batches)
    if batches == 6:
        train_data.set_epoch(1)
        assert train_data.scores.isfinite().sum() == 48
    else:
        with pytest.warns(UserWarning, match="Epoch 0 ended with 13 samples issued"):
            train_data.set_epoch(1)
        assert train_data.scores.isnan().all()
