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
from conftest import Numbered, loss_of, run_epoch


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


def test_second_forward_with_index():
    pruner = infobatch.Pruner(50, 3, delta=1.0)
    everything = torch.arange(50)
    pruner.update(everything.float(), index=everything)
    pruner.set_epoch(1)
    index = pruner.plan.order[:9]
    losses = torch.rand(9)
    assert torch.equal(pruner.update(losses, index=index), pruner.reweight(losses, index=index))


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
    assert f"{len(victims)} of them without a finite loss" in str(train_data.savings)


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
    len(loader)
    for twin in (pickle.loads(pickle.dumps(train_data)), copy.deepcopy(train_data)):
        assert torch.equal(twin.scores, train_data.scores)
        assert twin.plan.order.tolist() == train_data.plan.order.tolist()
        assert twin.classes == ("even", "odd")
        twin.set_epoch(2)
        assert train_data.epoch == 1


class TellsItsPruner(Numbered):
    def __getitem__(self, index):
        return torch.tensor(float(index)), 0


def ask_for_pruner(worker_id):
    copy_of_data = torch.utils.data.get_worker_info().dataset
    with pytest.raises(RuntimeError, match="loader worker's copy"):
        _ = copy_of_data.scores


def test_a_spawned_worker_gets_no_scores():
    train_data = infobatch.InfoBatch(TellsItsPruner(16), 3)
    loader = DataLoader(
        train_data,
        8,
        sampler=train_data.sampler,
        num_workers=1,
        multiprocessing_context="spawn",
        worker_init_fn=ask_for_pruner,
    )
    assert len(run_epoch(train_data, loader, 0)) == 16
