"""Each loss reaches its own sample, whatever stands between the sampler and the loop."""

import itertools

import datasets
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import infobatch
from numbered import Numbered, loss_of, run_epoch

SIZE, EPOCHS = 101, 3


def check_scores(train_data, visits):
    """Every score is the loss of that very sample in the last epoch that visited it."""
    last = {}
    for epoch, visited in enumerate(visits):
        assert len(visited) == len(set(visited))
        last.update(dict.fromkeys(visited, epoch))
    scores = train_data.scores
    assert torch.isnan(scores).sum() == len(scores) - len(last)
    for sample, epoch in last.items():
        assert scores[sample].item() == pytest.approx(loss_of(sample, epoch), abs=1e-6)


def train(train_data, loader):
    visits = []
    for epoch in range(EPOCHS):
        train_data.set_epoch(epoch)
        expected = len(loader)
        batches = 0
        visited = []
        for batch in loader:
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            train_data.update(loss_of(x, epoch))
            visited += x.long().tolist()
            batches += 1
        assert batches == expected, "len(loader) before the epoch is what it yields"
        assert len(loader) == batches, "and after it what it has yielded"
        assert visited == train_data.plan.order.tolist()[: len(visited)]
        visits.append(visited)
    assert train_data.savings.saved > 0
    return visits


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 0},
        {"num_workers": 1},
        {"num_workers": 1, "prefetch_factor": 1},
        {"num_workers": 4},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "pin_memory": True},
    ],
    ids=lambda workers: "-".join(f"{k}={v}" for k, v in workers.items()),
)
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")  # there is no accelerator here
def test_loaders(workers, drop_last):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, drop_last=drop_last, **workers)
    check_scores(train_data, train(train_data, loader))


def collate_into_dict(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": [y for _, y in samples]}


def test_dict_batches_and_custom_collate():
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(
        train_data, 8, sampler=train_data.sampler, collate_fn=collate_into_dict, num_workers=1
    )
    check_scores(train_data, train(train_data, loader))


def test_subset():
    train_data = infobatch.InfoBatch(Subset(Numbered(500), range(SIZE)), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    check_scores(train_data, train(train_data, loader))


def test_hugging_face_dataset():
    inner = datasets.Dataset.from_dict({"x": [float(i) for i in range(SIZE)]})
    train_data = infobatch.InfoBatch(inner.with_format("torch"), EPOCHS, delta=1.0)
    assert train_data.column_names == ["x"]
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    check_scores(train_data, train(train_data, loader))


def test_two_pruned_loaders_at_once():
    both = [infobatch.InfoBatch(Numbered(size), EPOCHS, delta=1.0) for size in (101, 77)]
    loaders = [DataLoader(data, 8, sampler=data.sampler, num_workers=1) for data in both]
    visits = [[], []]
    for epoch in range(EPOCHS):
        seen = [[], []]
        for batches in itertools.zip_longest(*loaders):
            for which, batch in enumerate(batches):
                if batch is not None:
                    both[which].update(loss_of(batch[0], epoch))
                    seen[which] += batch[0].long().tolist()
        for which in range(2):
            visits[which].append(seen[which])
    for which in range(2):
        check_scores(both[which], visits[which])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_peeking_burns_nothing(workers, persistent):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(
        train_data,
        8,
        sampler=train_data.sampler,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
    )
    visits = []
    for epoch in range(EPOCHS):
        next(iter(loader))
        first = next(iter(loader))[0].long().tolist()
        visits.append(run_epoch(train_data, loader, epoch))
        assert visits[-1][:8] == first
        assert train_data.epoch == epoch
    check_scores(train_data, visits)


@pytest.mark.parametrize("workers", [0, 2])
def test_breaking_off(workers):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler, num_workers=workers)
    visits = []
    for epoch in range(EPOCHS):
        visited = []
        for step, (x, _) in enumerate(loader):
            if step == 3:
                break
            train_data.update(loss_of(x, epoch))
            visited += x.long().tolist()
        visits.append(visited)
    assert train_data.epoch == EPOCHS - 1
    assert [epoch.made for epoch in train_data.savings.epochs] == [12] * EPOCHS
    check_scores(train_data, visits)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [0, 3])
def test_index_in_the_batch(workers, in_order):
    pruner = infobatch.Pruner(SIZE, num_epochs=EPOCHS, delta=1.0)
    loader = DataLoader(
        infobatch.Indexed(Numbered(SIZE)),
        8,
        sampler=pruner.sampler,
        num_workers=workers,
        in_order=in_order,
        collate_fn=infobatch.with_index(collate_into_dict),
    )
    visits = []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        expected = len(loader)
        batches = list(loader)  # everything is fetched long before the first update
        assert len(batches) == expected
        for index, batch in reversed(batches):
            assert index.tolist() == batch["x"].long().tolist()
            weights = dict(
                zip(pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True)
            )
            loss = pruner.update(loss_of(batch["x"], epoch), index=index)
            by_hand = [weights[i] * loss_of(i, epoch) for i in index.tolist()]
            assert loss.item() == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)
        visits.append([i for index, _ in batches for i in index.tolist()])
    assert pruner.savings.saved > 0
    check_scores(pruner, visits)


class WithHoles(Numbered):
    def __getitem__(self, index):
        return None if index % 5 == 0 else super().__getitem__(index)


def test_a_collate_function_that_drops_samples_with_the_index():
    pruner = infobatch.Pruner(SIZE, num_epochs=EPOCHS, delta=1.0)
    loader = DataLoader(
        infobatch.Indexed(WithHoles(SIZE)),
        8,
        sampler=pruner.sampler,
        collate_fn=infobatch.with_index(),
    )
    for epoch in range(EPOCHS):
        for index, (x, _) in loader:
            pruner.update(loss_of(x, epoch), index=index)
    scores = pruner.scores
    assert torch.isnan(scores).nonzero().flatten().tolist() == list(range(0, SIZE, 5))
    assert pruner.epoch == EPOCHS - 1


def test_micro_batches_and_scores_that_are_not_the_loss():
    train_data = infobatch.InfoBatch(Numbered(64), 2, delta=1.0)
    loader = DataLoader(train_data, 16, sampler=train_data.sampler, num_workers=1)
    for epoch in range(2):
        for x, _ in loader:
            for part in x.split(5):
                train_data.update(
                    infobatch.PerSample(loss_of(part, epoch), loss_of(part, epoch) + 1)
                )
    scores = train_data.scores
    for sample in train_data.plan.order.tolist():
        assert scores[sample].item() == pytest.approx(loss_of(sample, 1) + 1, abs=1e-6)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_batch_sampler(workers, drop_last):
    """Whole batches from the library: the same plan, the same scores, the same guards."""
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS + 1, delta=1.0)
    batches = train_data.batch_sampler(8, drop_last=drop_last)
    loader = DataLoader(train_data, batch_sampler=batches, num_workers=workers)
    check_scores(train_data, train(train_data, loader))
    loader.batch_sampler.set_epoch(EPOCHS)
    for x, _ in loader:
        train_data.skip()
        with pytest.raises(RuntimeError, match=r"samples, but only \d+ that the sampler"):
            train_data.update(torch.rand(1000))
        assert len(x) == 8
        break
