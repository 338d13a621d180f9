"""Every public error says what was called, what it got and what to do, and changes nothing."""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import infobatch
from numbered import Numbered, loss_of, run_epoch


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class NoLength:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"prune_ratio": 1.0}, ValueError, r"InfoBatch\(prune_ratio=…\) got 1.0, .* \[0, 1\)"),
        ({"prune_ratio": -0.1}, ValueError, r"prune_ratio=…\) got -0.1"),
        ({"prune_ratio": "half"}, ValueError, r"prune_ratio=…\) got 'half'"),
        ({"prune_ratio": float("nan")}, ValueError, r"prune_ratio=…\) got nan"),
        ({"delta": 1.5}, ValueError, r"delta got 1.5, expected a share of the epochs"),
        ({"delta": -0.5}, ValueError, r"delta got -0.5"),
        ({"num_epochs": 0}, ValueError, r"num_epochs got 0, expected an integer >= 1"),
        ({"num_epochs": 1.5}, ValueError, r"num_epochs got 1.5"),
        ({"seed": -1}, ValueError, r"seed got -1, expected an integer >= 0"),
        (
            {"dataset": []},
            ValueError,
            r"num_samples got 0, .* training needs some samples",
        ),
        (
            {"dataset": Stream()},
            TypeError,
            r"got Stream, expected a data set that is read by index.*keys, use KeyedPruner.*docs/streamed\.md",
        ),
        ({"dataset": NoLength()}, TypeError, r"got NoLength, which has no length"),
        ({"policy": "median"}, ValueError, r"policy='median' is not known. Expected one of 'mean'"),
        ({"policy": object()}, TypeError, r"is not a policy, expected one of"),
        (
            {"policy": infobatch.MeanPrune(), "prune_ratio": 0.3},
            ValueError,
            r"prune_ratio=0.3 and policy=MeanPrune\(ratio=0.5, .*\) were both given",
        ),
        ({"policy": "quantile", "prune_ratio": 0.3}, ValueError, r"which has no such ratio"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank=2, world_size=2 is not a rank"),
        ({"rank": 0.0, "world_size": 1}, ValueError, r"rank=0.0, world_size=1 is not a rank"),
        ({"rank": 0}, ValueError, r"rank=0, world_size=None"),
    ],
)
def test_construction(arguments, error, text):
    arguments = {"dataset": Numbered(10), "num_epochs": 3, **arguments}
    with pytest.raises(error, match=text):
        infobatch.InfoBatch(**arguments)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: infobatch.Pruner(10, 3, sharded=True, global_order=True),
            r"asks for two things that exclude each other: ranks .* and samplers that issue all samples",
        ),
        (lambda: infobatch.MeanPrune(1), r"MeanPrune\(ratio=…\) got 1,"),
        (lambda: infobatch.RandomPrune(2.0), r"RandomPrune\(ratio=…\) got 2.0"),
        (lambda: infobatch.QuantilePrune(bands=()), r"QuantilePrune\(bands=…\) got \(\)"),
        (lambda: infobatch.QuantilePrune(((0.8, 0.5), (0.2, 0.5))), r"rising quantiles"),
        (lambda: infobatch.QuantilePrune(((1.2, 0.5),)), r"rising quantiles in \(0, 1\]"),
        (lambda: infobatch.QuantilePrune(((0.5, 1.0),)), r"bands=…\) got 1.0"),
        (
            lambda: infobatch.Strata(np.zeros(3, np.uint8), (1.5,)),
            r"keep=…\) got .*each in \(0, 1\]",
        ),
        (lambda: infobatch.Strata(np.zeros(3, np.uint8), (0.0,)), r"never kept has no weight"),
        (
            lambda: infobatch.Strata(np.zeros(3, np.uint8), (0.5,), weights=(1.0, 2.0)),
            r"each of the 1 strata",
        ),
        (
            lambda: infobatch.Strata(np.full(3, 2, np.uint8), (0.5,)),
            r"has label 2, but keep has only 1",
        ),
    ],
)
def test_policies(build, text):
    with pytest.raises(ValueError, match=text):
        build()


def test_strata_of_another_type():
    with pytest.raises(TypeError, match=r"got int64 of shape \(3,\), expected a one-dimensional"):
        infobatch.Strata(np.zeros(3, np.int64), ())


def test_a_policy_that_forgets_samples():
    class Short(infobatch.Policy):
        def strata(self, samples):
            return infobatch.Strata(np.zeros(2, np.uint8), ())

    pruner = infobatch.Pruner(4, 3, policy=Short())
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index)]))
    pruner.set_epoch(1)
    with pytest.raises(
        ValueError, match=r"returned 2 labels, expected one for each of the 4 samples"
    ):
        len(pruner.sampler)


@pytest.mark.parametrize(
    ("losses", "error", "text"),
    [
        (torch.tensor(1.0), ValueError, r'update\(\) got a scalar, .* reduction="none"'),
        (torch.ones(8, 2), ValueError, r"update\(\) got losses of shape \(8, 2\)"),
        (torch.ones(8, dtype=torch.long), TypeError, r"update\(\) got losses of torch.int64"),
        ([1.0] * 8, TypeError, r"update\(\) got list, expected a tensor"),
        (torch.ones(0), ValueError, r"update\(\) got no losses"),
        (torch.ones(9), RuntimeError, r"update\(\) got 9 samples, but only 8 that the sampler"),
    ],
)
def test_losses(losses, error, text):
    """An update that raises changes nothing: the right one still goes to the right samples."""
    train_data = infobatch.InfoBatch(Numbered(40), 3)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    for x, _ in loader:
        with pytest.raises(error, match=text):
            train_data.update(losses)
        train_data.update(loss_of(x, 0))
    expected = torch.tensor([loss_of(i, 0) for i in range(40)])
    assert torch.allclose(train_data.scores, expected, atol=1e-6)


def test_scores_of_another_length():
    pruner = infobatch.Pruner(4, 3)
    next(iter(pruner.sampler))
    with pytest.raises(ValueError, match=r"update\(scores=…\) got torch.Size\(\[2\]\)"):
        pruner.update(torch.ones(1), scores=torch.ones(2))


def test_more_updates_than_batches():
    train_data = infobatch.InfoBatch(Numbered(16), 3)
    for x, _ in DataLoader(train_data, 8, sampler=train_data.sampler):
        train_data.update(loss_of(x, 0))
        with pytest.raises(RuntimeError, match=r"only 0 that the sampler issued .*reweight\(\)"):
            train_data.update(loss_of(x, 0))
    assert train_data.savings.made == 16


def test_update_without_the_sampler():
    train_data = infobatch.InfoBatch(Numbered(16), 3)
    for x, _ in DataLoader(train_data, 8, shuffle=True):
        with pytest.raises(RuntimeError, match=r"sampler=train_data.sampler"):
            train_data.update(loss_of(x, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_left_out_update(workers):
    train_data = infobatch.InfoBatch(Numbered(160), 3)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, num_workers=workers)
    for step, (x, _) in enumerate(loader):
        if step == 2:
            continue
        if step == 3:
            with pytest.raises(RuntimeError, match=r": 8 got no update, .* skip\(\)"):
                train_data.update(loss_of(x, 0))
            train_data.skip(8)  # what the message says: the batch that was left out
        train_data.update(loss_of(x, 0))
    assert int(torch.isnan(train_data.scores).sum()) == 8
    assert train_data.savings.unscored == 8


def drop_odd_ones(samples):
    samples = [sample for sample in samples if sample[0] != 5]
    return torch.utils.data.default_collate(samples)


def test_a_collate_function_that_drops_samples():
    train_data = infobatch.InfoBatch(Numbered(160), 3)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, collate_fn=drop_odd_ones)
    with pytest.raises(RuntimeError, match=r": 1 got no update, .* carry the index"):
        run_epoch(train_data, loader, 0)


@pytest.mark.parametrize("missing", [0, -1])
def test_an_update_left_out_where_counting_cannot_show_it(missing):
    """First or last, with all indices issued early: a warning, and no score is trusted."""
    train_data = infobatch.InfoBatch(Numbered(32), 3)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, num_workers=2)
    batches = len(loader)
    for step, (x, _) in enumerate(loader):
        if step != missing % batches:
            train_data.update(loss_of(x, 0))
    with pytest.warns(UserWarning, match=r"Epoch 0 ended with 8 samples .* never updated"):
        train_data.set_epoch(1)
    assert torch.isnan(train_data.scores).all()
    assert train_data.savings.made == train_data.savings.unscored == 24


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        ([0, 1, 2], ValueError, r"update\(index=…\) got .* shape \(3,\), .* each of the 2 losses"),
        ([0.0, 1.0], ValueError, r"got torch.float32 of shape \(2,\)"),
        ([0, 10], IndexError, r"got indices from 0 to 10, expected 0 to 9"),
        ([-1, 1], IndexError, r"got indices from -1 to 1"),
    ],
)
def test_indices(index, error, text):
    pruner = infobatch.Pruner(10, 3)
    with pytest.raises(error, match=text):
        pruner.update(torch.ones(2), index=torch.tensor(index))
    assert torch.isnan(pruner.scores).all()


def test_an_error_that_is_not_the_indices_fault_is_not_blamed_on_them(monkeypatch):
    def fails(*_):
        raise RuntimeError("out of memory")

    pruner = infobatch.Pruner(10, 2)
    monkeypatch.setattr(torch.Tensor, "index_select", fails)
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        pruner.update(torch.ones(2), index=torch.tensor([1, 2]))
    with pytest.raises(IndexError, match=r"got indices from 1 to 10, expected 0 to 9"):
        pruner.update(torch.ones(2), index=torch.tensor([1, 10]))


def test_skip_by_index():
    pruner = infobatch.Pruner(10, 3)
    for index, error in (([500], IndexError), ([-1], IndexError), ([0.5], ValueError)):
        with pytest.raises(error, match=r"skip\(index=…\) got"):
            pruner.skip(index=torch.tensor(index))
    pruner.skip(index=torch.tensor([3, 4], dtype=torch.int32))
    assert pruner.savings.made == pruner.savings.unscored == 2


def test_a_pruned_sample_gets_no_silent_weight():
    pruner = infobatch.Pruner(100, 3, delta=1.0)
    everything = torch.arange(100)
    pruner.update(everything.float(), index=everything)
    pruner.set_epoch(1)
    pruned = sorted(set(range(100)) - set(pruner.plan.order.tolist()))
    with pytest.raises(IndexError, match=rf"plan leaves out: \[{pruned[0]}, {pruned[1]}\]"):
        pruner.update(torch.ones(2), index=torch.tensor(pruned[:2]))


def test_the_two_forms_do_not_mix_in_an_epoch():
    pruner = infobatch.Pruner(10, 3)
    walk = iter(pruner.sampler)
    first = next(walk)
    pruner.update(torch.ones(1))
    with pytest.raises(RuntimeError, match=r"update\(index=…\) follows an update without index"):
        pruner.update(torch.ones(1), index=torch.tensor([first]))
    other = infobatch.Pruner(10, 3)
    first = next(iter(other.sampler))
    other.update(torch.ones(1), index=torch.tensor([first]))
    with pytest.raises(RuntimeError, match=r"follows an update with index="):
        other.update(torch.ones(1))


def test_reweight_before_update():
    pruner = infobatch.Pruner(10, 3)
    next(iter(pruner.sampler))
    with pytest.raises(RuntimeError, match=r"reweight\(\) got 1 losses, .* Call update\(\)"):
        pruner.reweight(torch.ones(1))


def test_skip_where_the_batch_is_unknown():
    pruner = infobatch.Pruner(10, 3)
    walk = iter(pruner.sampler)
    next(walk)
    with pytest.raises(RuntimeError, match=r"skip\(\) cannot tell the size"):
        pruner.skip()
    with pytest.raises(ValueError, match=r"skip\(\): count got 0, expected an integer"):
        pruner.skip(0)
    pruner.skip(1)


def test_batch_size():
    with pytest.raises(
        ValueError, match=r"batch_sampler\(\): batch_size got 0, expected an integer"
    ):
        infobatch.Pruner(10, 3).batch_sampler(0)


def test_set_epoch():
    with pytest.raises(ValueError, match=r"set_epoch\(\): epoch got -1"):
        infobatch.Pruner(10, 3).set_epoch(-1)


def good_state():
    pruner = infobatch.Pruner(20, 3)
    for position, index in enumerate(pruner.sampler):
        if position == 7:
            break
        pruner.update(torch.tensor([float(index)]))
    return pruner.state_dict()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (None, TypeError, r"load_state_dict\(\) got NoneType"),
        ({"version": 99}, ValueError, r"state of version 99, expected 2"),
        ({"num_samples": 30}, ValueError, r"data set with 30 samples, expected 20"),
        ({"columns": {}}, ValueError, r"damaged state: its scores are missing"),
        (
            {"columns": {"score": torch.zeros(19)}},
            ValueError,
            r"'score' is torch.float32 of shape \(19,\)",
        ),
        ({"columns": {"score": torch.zeros(20).long()}}, ValueError, r"'score' is torch.int64"),
        ({"losses": torch.zeros(21)}, ValueError, r"'losses' is torch.float32 of shape \(21,\)"),
        ({"losses_by": "magic"}, ValueError, r"'losses_by', 'history' or 'epoch'"),
        ({"history": [[1, 2]]}, ValueError, r"'losses_by', 'history' or 'epoch'"),
        ({"epoch": "3"}, ValueError, r"'epoch' is str, expected int"),
        ({"plan_check": 5}, ValueError, r"from the middle of epoch 0, .* is not the one"),
        ({"seed": 8}, ValueError, r"from the middle of epoch 0, .* is not the one"),
    ],
)
def test_states(change, error, text):
    state = None if change is None else {**good_state(), **change}
    pruner = infobatch.Pruner(20, 3, seed=4)
    before = pruner.state_dict()
    with pytest.raises(error, match=text):
        pruner.load_state_dict(state)
    after = pruner.state_dict()
    for old, new in ((before.pop("columns"), after.pop("columns")), (before, after)):
        assert all(
            torch.equal(old[key].nan_to_num(), new[key].nan_to_num())
            if isinstance(old[key], torch.Tensor)
            else old[key] == new[key]
            for key in old
        )


def test_a_state_with_a_missing_key():
    state = good_state()
    del state["losses"]
    with pytest.raises(ValueError, match=re.escape("'losses' is missing, expected Tensor")):
        infobatch.Pruner(20, 3).load_state_dict(state)


def test_paced():
    train_data = infobatch.InfoBatch(Numbered(8), 3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(
        ValueError, match=r"paced\(\): steps_per_epoch got 0, expected an integer >= 1"
    ):
        infobatch.paced(scheduler, train_data, steps_per_epoch=0)
    train_data.set_epoch(2)
    with pytest.raises(RuntimeError, match=r"first called in epoch 2, .* steps_per_epoch=…"):
        infobatch.paced(scheduler, train_data).step()
