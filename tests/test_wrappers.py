"""InfoBatch and Indexed in front of a data set: what is the inner one's, and what is wrong use."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split

import infobatch
from numbered import Endless, Numbered, loss_of, run_epoch


class Transformed(Numbered):
    def __init__(self, size):
        super().__init__(size)
        self.transform = None
        self.mosaic = True

    def close_mosaic(self):
        self.mosaic = False

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x if self.transform is None else self.transform(x)), y


@pytest.mark.parametrize("wrap", [infobatch.Indexed, lambda data: infobatch.InfoBatch(data, 2)])
def test_assignments_reach_the_data_set_inside(wrap):
    inner = Transformed(8)
    data = wrap(inner)
    loader = DataLoader(data, 4)
    loader.dataset.transform = torch.neg
    assert inner.transform is torch.neg
    assert "transform" not in vars(data)
    x = data[3][1][0] if isinstance(data, infobatch.Indexed) else data[3][0]
    assert x == -3
    loader.dataset.mosaic = "closing"  # Ultralytics
    assert inner.mosaic == "closing"
    loader.dataset.close_mosaic()
    assert inner.mosaic is False
    assert data.classes == inner.classes


@pytest.mark.parametrize("wrap", [infobatch.Indexed, lambda data: infobatch.InfoBatch(data, 2)])
def test_an_attribute_that_neither_has_is_the_wrapper_s(wrap):
    inner = Transformed(8)
    data = wrap(inner)
    with pytest.raises(
        AttributeError,
        match=r"has no attribute 'nonsense', and neither has the Transformed that it wraps\.$",
    ):
        _ = data.nonsense
    data.nonsense = 3
    assert data.nonsense == 3
    assert not hasattr(inner, "nonsense")
    for twin in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert twin.nonsense == 3
        assert twin.mosaic is True


def test_names_of_the_pruner_are_the_pruner_s():
    inner = Transformed(8)
    inner.epoch = inner.seed = "the data set's own"
    train_data = infobatch.InfoBatch(inner, 2, seed=5)
    assert (train_data.epoch, train_data.seed) == (0, 5)
    with pytest.raises(AttributeError):
        train_data.epoch = 3
    assert train_data.pruner is train_data


class Mine(infobatch.InfoBatch):
    def __init__(self, dataset, num_epochs):
        self.before = "set before"
        super().__init__(dataset, num_epochs)
        self.after = "set after"


def test_a_subclass_keeps_its_attributes():
    train_data = Mine(Transformed(8), 2)
    run_epoch(train_data, DataLoader(train_data, 4, sampler=train_data.sampler), 0)
    for twin in (copy.deepcopy(train_data), pickle.loads(pickle.dumps(train_data))):
        assert type(twin) is Mine
        assert (twin.before, twin.after) == ("set before", "set after")
        assert torch.equal(twin.scores, train_data.scores)


# Wrong use that was silent.


def test_an_infobatch_inside_an_infobatch():
    train_data = infobatch.InfoBatch(Numbered(8), 2)
    with pytest.raises(
        TypeError,
        match=r"^InfoBatch\(dataset\) got an InfoBatch, expected the data set itself: each would prune by "
        r"itself, and only one of them would get losses\. Pass train_data\.dataset\.$",
    ):
        infobatch.InfoBatch(train_data, 2)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)


def test_indexed_of_an_iterable():
    with pytest.raises(
        TypeError,
        match=r"^Indexed\(dataset\) got Stream, expected a data set that is read by index",
    ):
        infobatch.Indexed(Stream())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_split_of_an_infobatch(workers):
    train_data = infobatch.InfoBatch(Numbered(20), 2)
    part, _ = random_split(train_data, [15, 5])
    loader = DataLoader(part, 4, sampler=train_data.sampler, num_workers=workers)
    with pytest.raises(
        RuntimeError,
        match=r"^The loader reads 15 samples \(Subset\), but its sampler was built for 20\. Expected the "
        r"same data, of the same size in every epoch: scores belong to samples\. Split or extend the data "
        r"first and build the InfoBatch \(or Pruner\) from the part that is trained on; initial_scores= "
        r"carries known scores over\.$",
    ):
        next(iter(loader))


def test_data_that_grew():
    rows = [torch.tensor(float(i)) for i in range(12)]
    train_data = infobatch.InfoBatch(rows, 3)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    for x in loader:
        train_data.update(x)
    rows.append(torch.tensor(99.0))
    with pytest.raises(RuntimeError, match=r"reads 13 samples \(InfoBatch\), .* built for 12"):
        next(iter(loader))
    rows.pop()
    assert sum(len(x) for x in loader) <= 12


MORE_EPOCHS = (
    r"^Epoch {epoch} is being trained, but num_epochs={epoch}: epochs are counted from 0, and from the last "
    r"one on nothing is pruned\. Pass the number of epochs that are really trained, so that pruning stops "
    r"at the right time; if a loader or batch sampler repeats the epochs by itself, iterate it again for "
    r"each epoch\.$"
)


def test_more_epochs_than_declared_are_told_once():
    train_data = infobatch.InfoBatch(Numbered(16), 2)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    for epoch in range(2):
        run_epoch(train_data, loader, epoch)
    with pytest.warns(UserWarning, match=MORE_EPOCHS.format(epoch=2)):
        run_epoch(train_data, loader, 2)
    assert len(run_epoch(train_data, loader, 3)) == 16


def test_an_endless_iterator_without_a_loader_is_noticed():
    """It runs ahead: each of its epochs is as long as the one before, so more are trained than declared."""
    train_data = infobatch.InfoBatch(Numbered(84), 5, delta=1.0)
    sampler = train_data.batch_sampler(8)
    batches = iter(Endless(sampler))
    with pytest.warns(UserWarning, match=MORE_EPOCHS.format(epoch=5)):  # noqa: PT031
        for _ in range(5):
            for _ in range(len(sampler)):
                index = torch.tensor(next(batches))
                train_data.update(loss_of(index.float(), train_data.epoch))
    assert train_data.epoch == 5


@pytest.mark.parametrize("by_index", [False, True])
def test_an_epoch_of_only_nan(by_index):
    train_data = infobatch.InfoBatch(Numbered(16), 4, delta=1.0)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    run_epoch(train_data, loader, 0)
    known = train_data.scores
    with pytest.warns(  # noqa: PT031
        UserWarning,
        match=r"^None of the \d+ samples of epoch 1 got a score: every loss \(or score\) was NaN or infinite, or "
        r"its batch was skipped\. Their earlier scores stay, and pruning goes by these\. Has training "
        r"diverged\?$",
    ):
        for x, _ in loader:
            train_data.update(x * torch.nan, index=x.long() if by_index else None)
    assert torch.equal(train_data.scores, known)


# The index in batches that are dictionaries.


def collate(samples):
    return {"x": torch.stack([x for x, _ in samples])}


@pytest.mark.parametrize("workers", [0, 1])
def test_the_index_in_a_dictionary(workers):
    pruner = infobatch.Pruner(24, 3, delta=1.0)
    loader = DataLoader(
        infobatch.Indexed(Numbered(24)),
        8,
        sampler=pruner.sampler,
        collate_fn=infobatch.with_index(collate, key="index"),
        num_workers=workers,
    )
    for epoch in range(3):
        for batch in loader:
            assert set(batch) == {"x", "index"}
            assert batch["index"].tolist() == batch["x"].long().tolist()
            pruner.update(loss_of(batch["x"], epoch), index=batch["index"])
    assert pruner.savings.saved > 0


def test_a_key_needs_a_dictionary():
    data = infobatch.Indexed(TensorDataset(torch.zeros(2)))
    with pytest.raises(
        TypeError,
        match=r"^with_index\(collate, key='index'\) got a batch of type list from collate, expected a "
        r"dictionary, to which the index is added\. Leave key out to get \(index, batch\)\.$",
    ):
        infobatch.with_index(key="index")([data[0], data[1]])
