"""The ways people train: accumulation, AMP, compiled models, second forwards, NaN, evaluation."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.policies.planning import Planner
from numbered import Numbered, loss_of, run_epoch


def regression(size=96, num_epochs=4, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 * torch.randn(size, generator=generator) ** 3
    train_data = infobatch.InfoBatch(TensorDataset(x, y), num_epochs, delta=1.0, **options)
    return train_data, DataLoader(train_data, 16, sampler=train_data.sampler), x, y


def squared_error(model, x, y):
    return (model(x).squeeze(1) - y) ** 2


def test_whole_epochs_train_bit_for_bit_like_the_plain_mean():
    train_data, loader, *_ = regression(num_epochs=4, policy="none")
    torch.manual_seed(0)
    model, plain = nn.Linear(3, 1), nn.Linear(3, 1)
    plain.load_state_dict(model.state_dict())
    for _ in range(2):
        for batch_x, batch_y in loader:
            losses = squared_error(model, batch_x, batch_y)
            before = losses.clone()
            train_data.update(losses).backward()
            assert torch.equal(losses, before)
            squared_error(plain, batch_x, batch_y).mean().backward()
    assert torch.equal(model.weight.grad, plain.weight.grad)


def test_gradient_accumulation_over_a_pruned_epoch_adds_up_to_weights_by_hand():
    train_data, loader, x, y = regression()
    model = nn.Linear(3, 1)
    for _ in range(2):
        model.zero_grad()
        for batch_x, batch_y in loader:
            loss = train_data.update(squared_error(model, batch_x, batch_y))
            (loss * len(batch_x)).backward()
    plan = train_data.plan
    assert not plan.whole
    by_hand = copy.deepcopy(model)
    by_hand.zero_grad()
    losses = squared_error(by_hand, x[plan.order], y[plan.order])
    (losses * plan.weights).sum().backward()
    assert torch.allclose(model.weight.grad, by_hand.weight.grad, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_loss_dtypes(dtype):
    train_data = infobatch.InfoBatch(Numbered(300), 2, delta=1.0)
    loader = DataLoader(train_data, 50, sampler=train_data.sampler)
    for epoch in range(2):
        for x, _ in loader:
            losses = loss_of(x, epoch).to(dtype).requires_grad_()
            loss = train_data.update(losses)
            assert loss.dtype == dtype
            assert loss.dim() == 0
            loss.backward()
            assert losses.grad is not None
    assert train_data.scores.dtype == torch.float32
    for sample in train_data.plan.order.tolist():
        expected = torch.tensor(loss_of(sample, 1)).to(dtype).float()
        assert train_data.scores[sample].item() == pytest.approx(expected.item(), abs=1e-6)


def test_autocast():
    train_data, loader, *_ = regression()
    model = nn.Linear(3, 1)
    for _ in range(2):
        for x, y in loader:
            with torch.autocast("cpu", torch.bfloat16):
                losses = squared_error(model, x, y.bfloat16())
            assert losses.dtype == torch.bfloat16
            train_data.update(losses).backward()
    assert not torch.isnan(train_data.scores).any()


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_compiled_model():
    train_data, loader, *_ = regression(num_epochs=2)
    model = torch.compile(nn.Linear(3, 1), backend="aot_eager")
    for _ in range(2):
        for x, y in loader:
            train_data.update(squared_error(model, x, y)).backward()
    assert train_data.savings.saved > 0


def test_second_forward_of_the_same_batch():
    """SAM: the second loss is weighted as the first, and nothing is counted or recorded twice."""
    train_data, loader, *_ = regression()
    for _ in range(2):
        for x, _ in loader:
            losses = torch.rand(len(x), requires_grad=True)
            first = train_data.update(losses)
            scores, made = train_data.scores, train_data.savings.made
            assert torch.equal(train_data.reweight(losses), first)
            train_data.reweight(2 * losses)
            assert torch.equal(train_data.scores.nan_to_num(), scores.nan_to_num())
            assert train_data.savings.made == made
    assert not train_data.plan.whole


def test_lbfgs_closure():
    train_data, loader, *_ = regression(num_epochs=2)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for _ in range(2):
        for x, y in loader:
            weigh = train_data.update

            def closure(x=x, y=y):
                nonlocal weigh
                optimizer.zero_grad()
                loss = weigh(squared_error(model, x, y))
                weigh = train_data.reweight
                loss.backward()
                return loss

            optimizer.step(closure)
    assert train_data.savings.made == 96 + len(train_data.plan)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinite_losses(bad):
    train_data = infobatch.InfoBatch(Numbered(64), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    run_epoch(train_data, loader, 0)
    old = train_data.scores
    victims = []
    for x, _ in loader:
        losses = loss_of(x, 1)
        losses[0] = bad
        victims.append(int(x[0]))
        returned = train_data.update(losses)
        assert not torch.isfinite(returned), "the loss is what arithmetic gives"
    assert torch.equal(train_data.scores[victims], old[victims])
    assert torch.isfinite(train_data.scores).all()
    assert train_data.savings.unscored == len(victims)
    train_data.set_epoch(2)
    assert train_data.savings.unscored == len(victims)
    assert f"{len(victims)} of them without a score: NaN, infinite or skipped" in str(
        train_data.savings
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinite_losses_by_index(bad):
    """A sample without a score was visited all the same: the epoch comes to its end."""
    pruner = infobatch.Pruner(40, 4, delta=1.0)
    for epoch in range(2):
        length = len(pruner.sampler)
        for index in list(pruner.sampler):
            pruner.update(torch.tensor([bad if index == 3 else 1.0]), index=torch.tensor([index]))
        assert pruner.state_dict()["epoch"] == epoch + 1
        assert pruner.savings.made == 40 * (epoch + 1) == length * (epoch + 1)
        assert pruner.savings.unscored == epoch + 1
    assert torch.isnan(pruner.scores).sum() == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_keeps_the_scores_of_a_batch(workers):
    train_data = infobatch.InfoBatch(Numbered(100), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, num_workers=workers)
    run_epoch(train_data, loader, 0)
    old = train_data.scores
    batches = len(loader)
    skipped = []
    for step, (x, _) in enumerate(loader):
        if step in (0, 2, batches - 1):
            train_data.skip()
            skipped += x.long().tolist()
        elif step == 3:
            train_data.update(loss_of(x[:3], 1))
            train_data.skip()  # the rest of the batch
            skipped += x[3:].long().tolist()
        else:
            train_data.update(loss_of(x, 1))
    train_data.set_epoch(2)
    assert torch.equal(train_data.scores[skipped], old[skipped])
    assert train_data.savings.unscored == len(skipped)
    assert train_data.savings.epochs[1].made == train_data.savings.epochs[1].planned


def test_evaluation_loader_beside_the_training_loader():
    train_data = infobatch.InfoBatch(Numbered(64), 3, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    evaluation = DataLoader(Numbered(40), 8)
    for epoch in range(3):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            if epoch == 1:
                assert sum(len(batch) for batch, _ in evaluation) == 40
        # The training data too can be read for evaluation, by a loader of its own.
        assert sum(len(batch) for batch, _ in DataLoader(train_data, 8)) == 64
    assert train_data.epoch == 2


def test_the_users_random_streams_are_untouched():
    train_data = infobatch.InfoBatch(Numbered(64), 3, delta=1.0, policy="quantile")

    def states():
        legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
        return random.getstate(), legacy, torch.get_rng_state().tolist()

    before = states()
    for _ in range(3):
        len(train_data.sampler)
        for index in train_data.sampler:
            train_data.update(torch.tensor([float(index)]))
        assert states() == before
    assert train_data.savings.saved > 0


def test_pickle_and_copies_carry_the_state_but_workers_do_not():
    train_data = infobatch.InfoBatch(Numbered(64), 3, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    run_epoch(train_data, loader, 0)
    train_data.set_epoch(1)
    for twin in (pickle.loads(pickle.dumps(train_data)), copy.deepcopy(train_data)):
        assert torch.equal(twin.scores, train_data.scores)
        assert twin.plan.order.tolist() == train_data.plan.order.tolist()
        assert twin.classes == ("even", "odd")
        twin.set_epoch(2)
        assert train_data.epoch == 1


def ask_for_pruner(worker_id):
    copy_of_data = torch.utils.data.get_worker_info().dataset
    with pytest.raises(RuntimeError, match="loader worker's copy"):
        _ = copy_of_data.scores


def test_a_spawned_worker_gets_no_scores():
    train_data = infobatch.InfoBatch(Numbered(16), 3)
    run_epoch(train_data, DataLoader(train_data, 8, sampler=train_data.sampler), 0)
    loader = DataLoader(
        train_data,
        8,
        sampler=train_data.sampler,
        num_workers=1,
        multiprocessing_context="spawn",
        worker_init_fn=ask_for_pruner,
    )
    assert len(run_epoch(train_data, loader, 1)) == len(train_data.plan)


def train_in_a_process(rank, train_data, folder):
    run_epoch(train_data, DataLoader(train_data, 8, sampler=train_data.sampler), 0)
    torch.save(train_data.scores, folder / "scores.pt")


def test_a_data_set_handed_to_a_spawned_training_process(tmp_path):
    """torch.multiprocessing.spawn is a usual way to start DDP: the data set must arrive whole."""
    train_data = infobatch.InfoBatch(Numbered(16), 3)
    torch.multiprocessing.spawn(train_in_a_process, args=(train_data, tmp_path), nprocs=1)
    scores = torch.load(tmp_path / "scores.pt", weights_only=True)
    assert torch.allclose(scores, torch.tensor([loss_of(i, 0) for i in range(16)]))


def test_a_copy_in_mid_epoch_goes_on_there():
    train_data = infobatch.InfoBatch(Numbered(64), 3, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    for step, (x, _) in enumerate(loader):
        train_data.update(loss_of(x, 0))
        if step == 2:
            twin = pickle.loads(pickle.dumps(train_data))
            break
    assert twin.epoch == 0
    assert list(twin.sampler) == train_data.plan.order.tolist()[24:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("is_named", [False, True])
def test_the_length_in_the_loop_and_below_it_is_this_epoch_s(form, workers, is_named):
    """To flush accumulated gradients at the last batch, and for ``train_loss / len(loader)``."""
    train_data = infobatch.InfoBatch(Numbered(100), 4, delta=1.0)
    by_index = {"sampler": train_data.sampler, "batch_size": 8}
    of_ours = {"batch_sampler": train_data.batch_sampler(8)}
    loader = DataLoader(
        train_data, num_workers=workers, **(by_index if form == "sampler" else of_ours)
    )
    lengths = []
    for epoch in range(4):
        if is_named:
            train_data.set_epoch(epoch)
            assert len(loader) == -(-len(train_data.plan) // 8)
        flushed = []
        for step, (x, _) in enumerate(loader, 1):
            train_data.update(loss_of(x, epoch))
            train_data.state_dict()
            if step % 4 == 0 or step == len(loader):
                flushed.append(step)
        assert flushed[-1] == step == len(loader)
        assert train_data.epoch == epoch
        lengths.append(step)
    assert lengths[1] < lengths[0]


def test_the_length_after_breaking_off_is_that_of_the_loop():
    train_data = infobatch.InfoBatch(Numbered(100), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    run_epoch(train_data, loader, 0)
    for x, _ in loader:
        train_data.update(loss_of(x, 1))
        break
    assert len(loader) == -(-len(train_data.plan) // 8)
    assert train_data.epoch == 1
    run_epoch(train_data, loader, 2)
    assert train_data.epoch == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_made_by_hand(workers):
    """A fixed number of steps an epoch, a new iterator each time: every one is the next epoch."""
    train_data = infobatch.InfoBatch(Numbered(400), 4, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, num_workers=workers)
    for epoch in range(3):
        batches = iter(loader)
        for _ in range(5):
            x, _ = next(batches)
            train_data.update(loss_of(x, epoch))
        assert train_data.epoch == epoch
        assert train_data.plan.order.tolist()[32:40] == x.long().tolist()
    assert [passes.made for passes in train_data.savings.epochs] == [40] * 3


def test_an_epoch_once_more():
    train_data = infobatch.InfoBatch(Numbered(20), 1)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    for _ in range(2):
        train_data.set_epoch(0)
        expected = len(loader)
        assert len(run_epoch(train_data, loader, 0)) == len(train_data.plan)
        assert -(-len(train_data.plan) // 8) == expected
        assert train_data.epoch == 0
    assert len(train_data.savings.epochs) == 2


def test_the_same_batch_twice_by_index_is_one_visit():
    pruner = infobatch.Pruner(20, 4)
    for index in torch.tensor(list(pruner.sampler)).split(5):
        pruner.update(index.float(), index=index)
        pruner.update(index.float(), index=index)
        break
    assert pruner.savings.made == 5
    assert pruner.state_dict()["epoch"] == 0


def test_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        pruner = infobatch.Pruner(20, 4)
        pruner.update(torch.rand(4), index=torch.arange(4))
        next(iter(infobatch.Pruner(20, 4).sampler))
    finally:
        torch.use_deterministic_algorithms(False)
    assert int((~pruner.scores.isnan()).sum()) == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("by_index", [False, True])
def test_another_default_dtype(dtype, by_index):
    torch.set_default_dtype(dtype)
    try:
        pruner = infobatch.Pruner(20, 4, delta=1.0)
        for epoch in range(2):
            length = len(pruner.sampler)
            walk = iter(pruner.sampler)
            index = torch.tensor([next(walk) for _ in range(length - 2)])
            losses = (index + epoch).to(torch.float32)
            pruner.update(losses, index=index if by_index else None)
            other = infobatch.Pruner(20, 4, delta=1.0)
            other.load_state_dict(pruner.state_dict())
            assert torch.equal(other.scores.nan_to_num(), pruner.scores.nan_to_num())
            pruner.set_epoch(epoch + 1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_inference_mode_leaves_no_trace():
    pruner = infobatch.Pruner(40, 4, delta=1.0)
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index)]))
    walk = iter(pruner.sampler)
    next(walk)
    with torch.inference_mode():
        _ = pruner.savings, pruner.scores
        pruner.update(torch.ones(1))
    next(walk)
    losses = torch.ones(1, requires_grad=True)
    pruner.update(losses).backward()
    assert losses.grad is not None


def test_float64_weights_are_exact_in_both_forms():
    pruner = infobatch.Pruner(100, 4, delta=1.0)
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index % 7)]))
    pruner.set_epoch(1)
    plan = pruner.plan
    index = plan.order[:10]
    losses = torch.rand(10, dtype=torch.float64)
    by_hand = (losses * plan.weights[:10]).mean().item()
    assert pruner.update(losses, index=index).item() == pytest.approx(by_hand, rel=1e-15)


def test_per_sample_in_a_second_forward_and_scores_beside_it():
    pruner = infobatch.Pruner(10, 4)
    next(iter(pruner.sampler))
    pair = infobatch.PerSample(torch.ones(1), torch.full((1,), 5.0))
    first = pruner.update(pair, scores=torch.full((1,), 7.0))
    assert pruner.reweight(pair) == first
    assert pruner.scores[pruner.plan.order[0]] == 7.0


@pytest.mark.parametrize("by_index", [False, True])
def test_a_first_update_that_raises_loses_nothing(by_index):
    """The loop is mended and run again: it is still the first epoch, in either form."""
    train_data = infobatch.InfoBatch(Numbered(40), 3, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    batch, _ = next(iter(loader))
    index = torch.full((8,), 99) if by_index else None
    losses = loss_of(batch, 0) if by_index else torch.ones(9)
    with pytest.raises(IndexError if by_index else RuntimeError, match=r"update\(.*got"):
        train_data.update(losses, index=index)
    assert len(run_epoch(train_data, loader, 0)) == 40
    assert train_data.epoch == 0
    assert train_data.savings.made == 40


def test_a_reweight_that_raises_loses_nothing():
    train_data = infobatch.InfoBatch(Numbered(40), 3, delta=1.0)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    batch, _ = next(iter(loader))
    with pytest.raises(RuntimeError, match=r"reweight\(\) got 8 losses"):
        train_data.reweight(loss_of(batch, 0))
    assert len(run_epoch(train_data, loader, 0)) == 40
    assert train_data.epoch == 0


def test_properties_draw_no_plan(monkeypatch):
    """Except the plan itself: to log or to look at a pruner changes nothing, and costs nothing."""

    def fails(*_, **__):
        raise AssertionError("a plan was drawn")

    pruner = infobatch.Pruner(10, num_epochs=3)
    names = [
        name for name, member in vars(infobatch.Pruner).items() if isinstance(member, property)
    ]
    draw = Planner.draw
    for epoch in range(2):
        monkeypatch.setattr(Planner, "draw", fails)
        for name in set(names) - {
            "plan",
            "left_out",
            "last_loss",
        }:  # the last two may have to raise
            getattr(pruner, name)
        assert tuple(pruner.progress) == (epoch, 0, 10, 10)
        assert pruner.virtual_step(5) == 5 * epoch
        monkeypatch.setattr(Planner, "draw", draw)
        for index in pruner.sampler:
            pruner.update(torch.tensor([float(index)]))
        pruner.set_epoch(epoch + 1)
