"""Loaders that never end their sampler's iterator, loops that never end, epochs counted from 1."""

import itertools

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

import infobatch
from numbered import Endless, Numbered, loss_of, run_epoch

SIZE, EPOCHS, BATCH = 101, 4, 8


class OneIterator(DataLoader):
    """In the shape of timm's MultiEpochsDataLoader: workers live on because the iterator does."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._DataLoader__initialized = False
        self.batch_sampler = Endless(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.inner)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def new(size=SIZE, **options):
    return infobatch.InfoBatch(Numbered(size), EPOCHS, delta=1.0, **options)


def ways_to_build(train_data):
    yield {"batch_size": BATCH, "sampler": train_data.sampler}
    yield {"batch_size": BATCH, "sampler": train_data.sampler, "drop_last": True}
    yield {"batch_sampler": train_data.batch_sampler(BATCH)}
    yield {"batch_sampler": train_data.batch_sampler(BATCH, shrink="batch")}


ENDLESS = (
    r"^The loader took all of epoch 0 and began the next one within the same iteration.* Expected a "
    r"loader that is iterated again for each epoch, such as torch's DataLoader; "
    r"persistent_workers=True keeps its workers alive\.$"
)


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_keeps_one_iterator_raises(workers, way):
    train_data = new()
    options = list(ways_to_build(train_data))[way]
    loader = OneIterator(train_data, num_workers=workers, **options)
    steps = 0
    with pytest.raises(RuntimeError, match=ENDLESS):  # noqa: PT012 - with workers they read ahead
        for x, _ in itertools.chain(loader, loader):
            train_data.update(loss_of(x, 0))
            steps += 1
    full = SIZE // BATCH if options.get("drop_last") else -(-SIZE // BATCH)
    ahead = 2 * workers
    assert full - ahead <= steps <= full, "when it asks for the second epoch, not later"
    assert train_data.epoch == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_also_where_the_workers_read_a_whole_epoch_ahead(workers):
    """Three batches in all, and two workers that fetch two each before the first update."""
    train_data = new(size=24)
    updates = 0
    with pytest.raises(RuntimeError, match=ENDLESS):  # noqa: PT012
        loader = OneIterator(train_data, BATCH, sampler=train_data.sampler, num_workers=workers)
        for _ in range(2):
            for x, _ in loader:
                train_data.update(loss_of(x, 0))
                updates += 1
    assert updates <= 3


@pytest.mark.parametrize("workers", [0, 2])
def test_an_infinite_sampler_raises(workers):
    train_data = new()
    sampler = Endless(train_data.sampler)
    batches = iter(DataLoader(train_data, BATCH, sampler=sampler, num_workers=workers))
    with pytest.raises(RuntimeError, match=ENDLESS):  # noqa: PT012
        for x, _ in batches:
            train_data.update(loss_of(x, 0))


def cycle(loader):
    while True:
        yield from loader


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["none", "two", "persistent"],
)
def test_a_loop_by_steps_around_an_ordinary_loader(workers, way):
    """Every pass of the generator is an epoch."""
    by_steps, by_epochs = new(), new()
    loaders = [
        DataLoader(data, **list(ways_to_build(data))[way], **workers)
        for data in (by_steps, by_epochs)
    ]
    expected = [run_epoch(by_epochs, loaders[1], epoch) for epoch in range(3)]
    batches = cycle(loaders[0])
    visited = [[], [], []]
    while sum(map(len, visited)) < sum(map(len, expected)):
        x, _ = next(batches)
        epoch = by_steps.epoch
        by_steps.update(loss_of(x, epoch))
        visited[epoch] += x.long().tolist()
    assert visited == expected
    assert by_steps.savings == by_epochs.savings
    assert by_epochs.epoch == 2
    assert torch.equal(by_steps.scores, by_epochs.scores)


class Mapped(BatchSampler):
    """Batches from an iterator that is no generator: it cannot be referred to weakly."""

    def __iter__(self):
        return map(list, super().__iter__())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_s_iterator_of_any_kind(workers):
    train_data = new()
    batches = Mapped(train_data.sampler, BATCH, drop_last=False)
    loader = DataLoader(train_data, batch_sampler=batches, num_workers=workers)
    visits = [run_epoch(train_data, loader, epoch) for epoch in range(3)]
    assert [len(visited) for visited in visits] == [e.planned for e in train_data.savings.epochs]
    assert len(visits[1]) < SIZE


# Epochs counted from 1.

COUNTED_FROM_1 = (
    r"^The first epoch that was trained is number 1, so this run prunes 1 epoch less than it "
    r"could\. Epochs are counted from 0: call set_epoch\(0\) before the first one\. To continue an "
    r"earlier run, load its state_dict\(\) as well\.$"
)


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_counted_from_1_are_told_at_the_end_of_the_first(workers):
    train_data = new()
    loader = DataLoader(train_data, BATCH, sampler=train_data.sampler, num_workers=workers)
    train_data.set_epoch(1)
    with pytest.warns(UserWarning, match=COUNTED_FROM_1) as raised:
        run_epoch(train_data, loader, 1)
    # Python 3.12 and newer also warn of a fork beside other threads, which is how torch starts workers.
    assert len([warning for warning in raised if warning.category is UserWarning]) == 1
    train_data.set_epoch(2)
    run_epoch(train_data, loader, 2)  # once is enough: another warning would be an error
    assert [passes.epoch for passes in train_data.savings.epochs] == [1, 2]


def test_epochs_counted_from_0_and_resumed_ones_are_not_told():
    train_data = new()
    loader = DataLoader(train_data, BATCH, sampler=train_data.sampler)
    train_data.set_epoch(0)
    run_epoch(train_data, loader, 0)
    resumed = new()
    resumed.load_state_dict(train_data.state_dict())
    resumed.set_epoch(1)
    run_epoch(resumed, DataLoader(resumed, BATCH, sampler=resumed.sampler), 1)
