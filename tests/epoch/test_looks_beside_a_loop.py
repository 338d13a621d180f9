"""Iterators that begin while a real loop is under way: never an update of another epoch unnoticed."""

from contextlib import suppress
from math import isnan

import pytest
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of

TWO_ITERATORS = r"update\(\) cannot tell which of two iterators its batch is from"


def parts(workers, size=400):
    train_data = infobatch.InfoBatch(Numbered(size), 4, delta=1.0)
    return train_data, DataLoader(train_data, 8, sampler=train_data.sampler, num_workers=workers)


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_without_workers_a_look_changes_nothing(looks):
    train_data, loader = parts(workers=0)
    visited = []
    for step, (x, _) in enumerate(loader):
        if step == 3:
            for _ in range(looks):
                next(iter(loader))
        train_data.update(loss_of(x, 0))
        visited += x.long().tolist()
    assert visited == train_data.plan.order.tolist()
    assert train_data.epoch == 0
    for sample in visited:
        assert train_data.scores[sample].item() == pytest.approx(loss_of(sample, 0), abs=1e-6)


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_with_workers_the_loop_s_next_update_is_refused(looks):
    """They read ahead, so a new iterator may as well be the next epoch."""
    train_data, loader = parts(workers=2)
    batches = iter(loader)
    for _ in range(3):
        train_data.update(loss_of(next(batches)[0], 0))
    for _ in range(looks):
        next(iter(loader))
    x, _ = next(batches)
    with pytest.raises(RuntimeError, match=TWO_ITERATORS):
        train_data.update(loss_of(x, 0))


def test_with_workers_that_read_to_the_end_after_the_look():
    """Ten batches: the loop has taken nine when somebody looks, and the last when it continues."""
    train_data, loader = parts(workers=2, size=80)
    batches = iter(loader)
    for _ in range(5):
        train_data.update(loss_of(next(batches)[0], 0))
    walk = train_data.pruner._course.run.walk
    assert not walk.exhausted
    next(iter(loader))
    x, _ = next(batches)
    assert walk.exhausted
    with pytest.raises(RuntimeError, match=TWO_ITERATORS):
        train_data.update(loss_of(x, 0))


@pytest.mark.parametrize("made", [3, 6, 8])
def test_an_iterator_that_is_replaced_is_no_rival(made):
    """``batches = iter(loader)``: with workers the new one begins before the old one is gone."""
    train_data, loader = parts(workers=2, size=80)
    for epoch in range(2):
        batches = iter(loader)
        for _ in range(3 if epoch else made):
            train_data.update(loss_of(next(batches)[0], epoch))
        if made > 5 and not epoch:  # the workers have read everything
            train_data.pruner._course.leave_early(made)
    assert train_data.epoch == 1


@pytest.mark.parametrize("looks", [1, 3])
def test_without_workers_a_look_in_every_step_changes_nothing(looks):
    """Also in the first step, where nothing shows yet which iterator the loop has."""
    train_data, loader = parts(workers=0, size=80)
    for epoch in range(3):
        visited = []
        for x, _ in loader:
            for _ in range(looks):
                next(iter(loader))
            train_data.update(loss_of(x, epoch))
            visited += x.long().tolist()
        assert visited == train_data.plan.order.tolist()
        assert train_data.epoch == epoch
        for sample in visited:
            assert train_data.scores[sample].item() == pytest.approx(
                loss_of(sample, epoch), abs=1e-6
            )


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_index", [False, True])
def test_looks_in_every_step_never_lead_to_another_epoch_unnoticed(by_index, workers, kept):
    train_data, loader = parts(workers=workers, size=160)
    look = None
    with suppress(RuntimeError):  # it is refused, or it is right
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


def test_an_iterator_that_was_kept_from_a_look_is_no_rival():
    """As in tutorials: ``images = iter(loader)``, a look, and the training after it."""
    train_data, loader = parts(workers=0, size=80)
    images = iter(loader)
    next(images)
    for epoch in range(3):
        for step, (x, _) in enumerate(loader):
            train_data.update(loss_of(x, epoch))
            if step == 4:
                break
        assert train_data.epoch == epoch
