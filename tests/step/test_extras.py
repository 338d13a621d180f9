"""What a loop reports beside the losses reaches the samples that it belongs to."""

import math

import pytest
import torch

import infobatch
from infobatch.tracks import Latest
from rank_threads import on_ranks

SIZE, EPOCHS = 50, 4


def extra_of(index, epoch):
    """A number that tells the sample and the epoch apart, and is none in some visits."""
    values = torch.as_tensor(index) + 1000.0 * epoch
    return torch.where((torch.as_tensor(index) + epoch) % 7 == 3, math.nan, values)


def losses_of(index, epoch):
    return (torch.as_tensor(index) * 31 + epoch * 17) % 50 / 50 + 0.001


def new_pruner(**options):
    options = {"delta": 1.0, "tracks": [Latest("extra")], **options}
    return infobatch.Pruner(SIZE, EPOCHS, **options)


def train(pruner, *, by_index=False, form="extras", stop=None, seen=None):
    """Train; return what the last finite report of each sample was. With ``stop``, leave after it."""
    seen = {} if seen is None else seen
    steps = 0
    for epoch in range(pruner.epoch, pruner.num_epochs):
        for index in pruner.batch_sampler(8):
            losses, extra = losses_of(index, epoch), extra_of(index, epoch)
            samples = torch.tensor(index) if by_index else None
            if form == "extras":
                pruner.update(losses, index=samples, extras={"extra": extra, "other": extra})
            else:
                report = infobatch.PerSample(losses, losses, {"extra": extra})
                pruner.update(report, index=samples)
            seen |= {
                i: value
                for i, value in zip(index, extra.tolist(), strict=True)
                if math.isfinite(value)
            }
            steps += 1
            if steps == stop:
                return seen
    return seen


def column(pruner):
    return pruner.state_dict()["columns"]["extra"].tolist()


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("form", ["extras", "PerSample"])
def test_each_value_reaches_its_sample(by_index, form):
    pruner = new_pruner()
    seen = train(pruner, by_index=by_index, form=form)
    expected = [seen.get(sample, math.nan) for sample in range(SIZE)]
    assert column(pruner) == pytest.approx(expected, nan_ok=True)
    assert pruner.savings.saved > 0


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("stop", [3, 7, 9, 12])
def test_a_run_that_is_stopped_in_the_middle_of_an_epoch_loses_nothing(by_index, stop):
    straight = new_pruner()
    expected = train(straight, by_index=by_index)
    first, second = new_pruner(), new_pruner()
    seen = train(first, by_index=by_index, stop=stop)
    second.load_state_dict(first.state_dict())
    train(second, by_index=by_index, seen=seen)
    assert seen == expected
    assert column(second) == pytest.approx(column(straight), nan_ok=True)


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_know_each_others(by_index, world_size):
    def work(pruner, rank):
        train(pruner, by_index=by_index)
        return column(pruner)

    alone = new_pruner()
    train(alone)
    options = {"delta": 1.0, "tracks": [Latest("extra")]}
    for result in on_ranks(world_size, work, SIZE, EPOCHS, **options):
        assert result == pytest.approx(column(alone), nan_ok=True)


def test_a_batch_that_is_skipped_keeps_the_old_values():
    pruner = new_pruner()
    train(pruner, stop=7)
    before = column(pruner)
    for number, index in enumerate(pruner.batch_sampler(8)):
        if number % 2:
            pruner.skip()
        else:
            pruner.update(losses_of(index, 1), extras={"extra": torch.zeros(len(index))})
    after = column(pruner)
    assert {
        value
        for old, value in zip(before, after, strict=True)
        if old != value and math.isfinite(value)
    } == {0.0}


@pytest.mark.parametrize("by_index", [False, True])
def test_missing_and_misshapen_extras_are_errors_and_record_nothing(by_index):
    pruner = new_pruner()
    index = next(iter(pruner.batch_sampler(8)))
    options = {"index": torch.tensor(index)} if by_index else {}
    text = r"update\(\) got no 'extra' for its samples, which MeanPrune.* needs. Pass update\(…, extras="
    with pytest.raises(ValueError, match=text):
        pruner.update(torch.ones(8), **options)
    with pytest.raises(ValueError, match=text):
        pruner.update(torch.ones(8), extras={"another": torch.ones(8)}, **options)
    with pytest.raises(
        ValueError, match=r"update\(extras=…\) got torch.Size\(\[7\]\) for 'extra', exp"
    ):
        pruner.update(torch.ones(8), extras={"extra": torch.ones(7)}, **options)
    assert torch.isnan(pruner.scores).all()
    with pytest.raises(
        ValueError, match=r"update\(extras=…\) got list for 'extra', expected one value"
    ):
        pruner.update(torch.ones(8), extras={"extra": [1.0] * 8}, **options)
    pruner.update(torch.ones(8), extras={"extra": torch.ones(8)}, **options)


def test_extras_that_nobody_needs_are_left_alone():
    pruner = infobatch.Pruner(SIZE, EPOCHS)
    index = next(iter(pruner.batch_sampler(8)))
    pruner.update(torch.ones(len(index)), extras={"extra": torch.ones(3)})
    assert "extra" not in pruner.state_dict()["columns"]
