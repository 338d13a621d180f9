"""Iterators that begin before, beside and after a loop: never an update of another epoch unnoticed."""

import gc
import warnings
from contextlib import suppress
from math import isnan

import pytest
import torch
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of, run_epoch

SECOND = (
    r"^A second iterator of this sampler asks for samples in the middle of epoch {epoch}, while the first "
    r"is still in use, so their losses could not be told apart\. Expected one loop at a time\. To look "
    r"at the data meanwhile, use a loader of its own, without this sampler: "
    r"DataLoader\(train_data\.dataset, …\)\. To leave this epoch \(an interrupted notebook cell keeps its "
    r"iterator\), call set_epoch\({following}\) first\.$"
)
STALE = (
    r"^An iterator of an epoch that is over asks this sampler for more samples; their losses would "
    r"belong to no epoch\. Expected a new iterator for each epoch, as in: for batch in loader$"
)


def second_in(epoch):
    return SECOND.format(epoch=epoch, following=epoch + 1)


def parts(size=400, **options):
    train_data = infobatch.InfoBatch(Numbered(size), 4, delta=1.0)
    return train_data, DataLoader(train_data, 8, sampler=train_data.sampler, **options)


def check_scores(train_data, epoch):
    for sample in train_data.plan.order.tolist():
        assert train_data.scores[sample].item() == pytest.approx(loss_of(sample, epoch), abs=1e-6)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("made", [1, 3, 49])
def test_a_second_iterator_in_the_middle_of_an_epoch_raises(drop_last, made):
    train_data, loader = parts(drop_last=drop_last)
    visited = []
    for step, (x, _) in enumerate(loader, 1):
        train_data.update(loss_of(x, 0))
        visited += x.long().tolist()
        if step == made:
            with pytest.raises(RuntimeError, match=second_in(0)):
                next(iter(loader))
    assert visited == train_data.plan.order.tolist(), (
        "and the loop continues as if nothing had been"
    )
    check_scores(train_data, 0)
    assert train_data.epoch == 0
    assert len(run_epoch(train_data, loader, 1)) >= 8


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("made", [1, 3, 45, 49])  # from 45 on the workers have read to the end
def test_with_workers_the_loop_raises_when_it_continues(made, looks, drop_last):
    """They read ahead while the iterator is being created, which may yet replace the other."""
    train_data, loader = parts(num_workers=2, drop_last=drop_last)
    batches = iter(loader)
    for _ in range(made):
        train_data.update(loss_of(next(batches)[0], 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # at the end: updates are missing
        for _ in range(looks):
            next(iter(loader))
    with pytest.raises(RuntimeError, match="A second iterator of this sampler asks"):  # noqa: PT012
        x, _ = next(batches)
        train_data.update(loss_of(x, 0))
    assert train_data.savings.made == 8 * made


def test_batches_from_our_batch_sampler_without_a_loader():
    train_data, _ = parts()
    batches = train_data.batch_sampler(8)
    first = iter(batches)
    train_data.update(loss_of(torch.tensor(next(first)), 0))
    with pytest.raises(RuntimeError, match=second_in(0)):
        next(iter(batches))
    train_data.update(loss_of(torch.tensor(next(first)), 0))


def test_with_the_index_in_the_batch_too():
    pruner = infobatch.Pruner(80, 4)
    data = infobatch.Indexed(Numbered(80))
    loader = DataLoader(data, 8, sampler=pruner.sampler, collate_fn=infobatch.with_index())
    for index, (x, _) in loader:
        pruner.update(loss_of(x, 0), index=index)
        with pytest.raises(RuntimeError, match=second_in(0)):
            next(iter(loader))
        break


@pytest.mark.parametrize("was_told", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["none", "workers"])
def test_after_set_epoch_an_iterator_that_is_still_held_is_left(options, was_told):
    """A notebook: the interrupted cell's iterator lives on in its traceback."""
    train_data, loader = parts(**options)
    held = iter(loader)
    train_data.update(loss_of(next(held)[0], 0))
    if was_told:  # what the error expects then works
        with pytest.raises(RuntimeError, match=second_in(0)):
            run_epoch(train_data, loader, 0)
    train_data.set_epoch(1)
    visited = run_epoch(train_data, loader, 1)
    assert visited == train_data.plan.order.tolist()[: len(visited)]
    assert [passes.made for passes in train_data.savings.epochs] == [8, len(visited)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["none", "workers"])
@pytest.mark.parametrize("looks", [1, 3])
def test_looks_before_the_first_update(options, looks):
    """Also in the first step's body, where nothing shows yet which iterator the loop has."""
    train_data, loader = parts(size=80, **options)
    kept = iter(loader)
    next(kept)
    for epoch in range(3):
        visited = []
        for step, (x, _) in enumerate(loader):
            if not step:
                for _ in range(looks):
                    next(iter(loader))
            train_data.update(loss_of(x, epoch))
            visited += x.long().tolist()
        assert visited == train_data.plan.order.tolist()[: len(visited)]
        assert train_data.epoch == epoch
        check_scores(train_data, epoch)


def test_a_look_that_is_kept_in_the_first_step_s_body():
    """It might be the loop. The one that asks next without being it raises."""
    train_data, loader = parts(size=80)
    batches = iter(loader)
    x, _ = next(batches)
    look = iter(loader)
    next(look)
    train_data.update(loss_of(x, 0))
    with pytest.raises(RuntimeError, match=second_in(0)):
        next(batches)


@pytest.mark.parametrize("form", ["sampler", "drop_last", "batch_sampler", "workers"])
def test_an_iterator_of_an_epoch_that_is_over_raises(form):
    train_data, loader = parts(
        drop_last=form == "drop_last", num_workers=2 if form == "workers" else 0
    )
    if form == "batch_sampler":
        loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(8))
    # With drop_last, torch does not come back to the sampler for each batch.
    error = "only 0 that the sampler issued are waiting" if form == "drop_last" else STALE
    looks = [iter(loader) for _ in range(2)]
    for look in looks:
        next(look)
    run_epoch(train_data, loader, 0)
    with pytest.raises(RuntimeError, match=error):
        train_data.update(next(looks[0])[0])
    check_scores(train_data, 0)
    batches = iter(loader)
    train_data.update(loss_of(next(batches)[0], 1))
    with pytest.raises(RuntimeError, match=error):
        train_data.update(next(looks[1])[0])
    train_data.update(loss_of(next(batches)[0], 1))
    assert train_data.epoch == 1


class InC(torch.utils.data.BatchSampler):
    """Its iterators are of a type of C, so nothing can refer to them weakly."""

    def __iter__(self):
        return map(list, super().__iter__())


@pytest.mark.parametrize("batches", [torch.utils.data.BatchSampler, InC])
def test_persistent_workers_begin_again(batches):
    train_data, _ = parts(size=80)
    loader = DataLoader(
        train_data,
        batch_sampler=batches(train_data.sampler, 8, drop_last=False),
        num_workers=2,
        persistent_workers=True,
    )
    for epoch in range(3):
        for step, (x, _) in enumerate(loader):
            if step == 3:
                break
            train_data.update(loss_of(x, epoch))
    assert [passes.made for passes in train_data.savings.epochs] == [24] * 3
    assert train_data.epoch == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_by_steps_that_drops_samples_and_keeps_its_iterator(workers):
    """The epoch's last update cannot be recognised, but its last batch can."""
    pruner = infobatch.Pruner(80, 4, policy="none")
    loader = DataLoader(
        infobatch.Indexed(WithHoles(80)),
        8,
        sampler=pruner.sampler,
        collate_fn=infobatch.with_index(),
        num_workers=workers,
    )
    batches = iter(loader)
    for _ in range(25):
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        index, (x, _) = batch
        pruner.update(loss_of(x, 0), index=index)
    assert pruner.epoch >= 2


class WithHoles(Numbered):
    def __getitem__(self, index):
        return None if index % 5 == 0 else super().__getitem__(index)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_index", [False, True])
def test_looks_in_every_step_never_lead_to_another_epoch_unnoticed(by_index, workers, kept):
    train_data, loader = parts(size=160, num_workers=workers)
    look = None
    with suppress(RuntimeError):  # it raises, or it is right
        for _, (x, _) in zip(range(20), loader, strict=True):
            del look
            look = iter(loader)
            next(look)
            if not kept:
                look = None
            train_data.update(loss_of(x, 0), index=x.long() if by_index else None)
    wrong = [
        sample
        for sample, score in enumerate(train_data.scores.tolist())
        if not isnan(score) and score != pytest.approx(loss_of(sample, 0), abs=1e-6)
    ]
    assert wrong == []
    assert len(train_data.savings.epochs) <= 1, "nothing was trained on as another epoch"


def test_observing_a_loader_does_not_keep_it_alive():
    train_data, loader = parts(size=80, num_workers=2)
    batches = iter(loader)
    train_data.update(loss_of(next(batches)[0], 0))
    gc.disable()  # counting references alone must free it: its workers end with it
    try:
        processes = list(batches._workers)
        del batches
        assert not any(process.is_alive() for process in processes)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
@pytest.mark.parametrize("form", ["sampler", "batch_sampler"])
def test_an_epoch_without_a_single_update_is_told(form, options):
    train_data, _ = parts(size=80)
    of_ours = {"batch_sampler": train_data.batch_sampler(8)}
    by_index = {"batch_size": 8, "sampler": train_data.sampler}
    loader = DataLoader(train_data, **(by_index if form == "sampler" else of_ours), **options)
    assert sum(len(x) for x, _ in loader) == 80
    with pytest.warns(
        UserWarning, match=r"iterated to its end in epoch 0 without a single update\(\)"
    ):
        assert len(run_epoch(train_data, loader, 0)) == 80
    assert train_data.epoch == 0
