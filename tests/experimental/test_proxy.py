"""A small network chooses what to train on: unbiased or the hardest, its cost counted, resumable."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn import functional

from infobatch import PerSample, StreamPruner
from infobatch.experimental.flops import forward_flops, share_before
from infobatch.experimental.hardest import Hardest
from infobatch.experimental.proxy import Proxy

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 4, generator=GENERATOR)
Y = (X[:, 0] + 0.3 * torch.randn(40, generator=GENERATOR) > 0).long()


def proxy_of(pruner, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    options = {"cost": 0.1, **options}
    return Proxy(model, torch.optim.SGD(model.parameters(), 0.5, momentum=0.9), pruner, **options)


def losses(model):
    return functional.cross_entropy(model(X), Y, reduction="none")


# The hardest.


def test_the_hardest_are_kept_in_order_with_weight_one():
    kept = Hardest(keep=0.5).select(torch.tensor([0.5, 3.0, 0.1, 2.0, 0.2]))
    assert kept.index.tolist() == [0, 1, 3], "a half, rounded up"
    assert kept.weights.tolist() == [1.0] * 3
    assert kept.batch_size == 5
    assert kept.mean(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(6 / 5), "over the whole batch"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_not_numbers_are_kept_and_counted(bad):
    hardest = Hardest(keep=0.5)
    assert hardest.select(torch.tensor([9.0, bad])).index.tolist() == [1]
    assert hardest.select(torch.tensor([9.0, 1.0])).index.tolist() == [0]
    assert hardest.savings.unscored == 1
    again = Hardest(keep=0.5)
    again.load_state_dict(hardest.state_dict())
    again.select(torch.tensor([bad, bad]))
    assert again.savings.unscored == 3


def test_the_share_is_rounded_up_exactly():
    """As with fractions; floating-point numbers would keep 9 of 10 for 0.8."""
    for keep in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1):
        for size in (1, 5, 10, 20, 64, 100, 1000, 1024):
            expected = math.ceil(Fraction(str(keep)) * size)
            assert len(Hardest(keep=keep).select(torch.rand(size))) == expected
    assert len(Hardest(keep=1e-12).select(torch.rand(8))) == 1


def test_the_mean_is_over_the_batch_or_over_the_kept():
    """Over the kept, it is what a criterion with the reduction "mean" computes from their outputs."""
    losses = torch.tensor([0.5, 3.0, 0.1, 2.0, 0.2])
    for mean_over, expected in (("batch", 5.5 / 5), ("kept", 5.5 / 3)):
        kept = Hardest(keep=0.6, mean_over=mean_over).select(losses)
        assert kept.mean(losses[kept.index]) == pytest.approx(expected)
    ramped = Hardest(keep=0.5, ramp=4, mean_over="kept")
    for size in (8, 7, 6, 5, 4):
        kept = ramped.select(torch.rand(8))
        assert kept.weights.tolist() == [pytest.approx(8 / size)] * size
    with pytest.raises(ValueError, match=r"Hardest\(mean_over=…\) got 'sum', expected 'batch' or"):
        Hardest(mean_over="sum")


def test_the_share_that_is_left_out_rises_over_the_ramp():
    hardest = Hardest(keep=0.5, ramp=4)
    assert [len(hardest.select(torch.rand(8))) for _ in range(6)] == [8, 7, 6, 5, 4, 4]
    continued = Hardest(keep=0.5, ramp=4)
    continued.select(torch.rand(8))
    state = continued.state_dict()
    again = Hardest(keep=0.5, ramp=4)
    again.load_state_dict(state)
    assert len(again.select(torch.rand(8))) == 7
    assert (again.savings.scored, again.savings.trained) == (16, 15)


@pytest.mark.parametrize("keep", [0, -0.5, 1.5, True, "half"])
def test_shares_of_the_hardest_that_raise(keep):
    with pytest.raises(ValueError, match="expected the share of each batch to train on") as error:
        Hardest(keep=keep)
    assert f"Hardest(keep=…) got {keep!r}" in str(error.value)


def test_scores_that_are_no_batch_raise():
    with pytest.raises(ValueError, match=r"got scores of shape \(2, 2\), expected one score"):
        Hardest().select(torch.zeros(2, 2))


# The proxy.


def test_the_expected_gradient_is_that_of_the_whole_batch():
    """A z-test in each coordinate over many draws; without the weights it would fail."""
    proxy = proxy_of(StreamPruner(keep=0.3, window=40), every=10**9)
    network = nn.Linear(4, 2)
    gradients = []
    for _ in range(3000):
        kept = proxy.select(losses)
        outputs = network(X[kept.index])
        each = functional.cross_entropy(outputs, Y[kept.index], reduction="none")
        gradients.append(torch.autograd.grad(kept.mean(each), network.weight)[0].flatten())
    (full,) = torch.autograd.grad(losses(network).mean(), network.weight)
    drawn = torch.stack(gradients[50:])  # the first draws know fewer scores
    error = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - full.flatten()) / error).abs().max() < 4
    assert (full.flatten() / error).abs().max() > 20, "there is something to be wrong about"


def test_it_learns_from_every_fourth_batch_what_it_keeps():
    proxy = proxy_of(Hardest(keep=0.5))
    by_hand = copy.deepcopy(proxy.model)
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.5, momentum=0.9)
    for number in range(9):
        kept = proxy.select(losses)
        each = losses(by_hand)
        hardest = each.argsort()[-20:]
        assert kept.index.tolist() == sorted(hardest.tolist())
        if number % 4 == 0:
            optimizer.zero_grad()
            (each[hardest].sum() / 40).backward()
            optimizer.step()
        assert torch.allclose(proxy.model.weight, by_hand.weight)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_teaches_nothing(bad):
    """One bad sample: the proxy takes no step on its batch, and the steps after it as if it had not been."""
    proxy = proxy_of(StreamPruner(keep=0.5), every=1)
    before = proxy.model.weight.clone()
    spoil = torch.where(torch.arange(40) == 3, bad, 1.0)
    kept = proxy.select(lambda model: losses(model) * spoil)
    assert 3 in kept.index
    assert torch.equal(proxy.model.weight, before)
    assert not proxy.optimizer.state
    for _ in range(4):
        assert len(proxy.select(losses)) < 40
    assert not torch.equal(proxy.model.weight, before)
    assert proxy.savings.unscored == 1
    learning = 4 * 40 * 0.1 * 2 / 3
    assert proxy.savings.cost == pytest.approx(proxy.savings.trained + 5 * 40 * 0.1 / 3 + learning)


def test_the_scores_of_a_per_sample_choose():
    proxy = proxy_of(Hardest(keep=0.5))
    order = torch.arange(40.0)
    kept = proxy.select(lambda model: PerSample(losses(model), order))
    assert kept.index.tolist() == list(range(20, 40))


def test_the_cost_of_the_proxy_is_counted():
    proxy = proxy_of(Hardest(keep=0.25), cost=0.12)
    assert proxy.savings.fraction == 0
    for _ in range(8):
        proxy.select(losses)
    scoring = 8 * 40 * 0.12 / 3
    learning = 2 * 40 * 0.12 * 2 / 3  # a backward pass for all samples of every fourth batch
    assert proxy.savings.cost == pytest.approx(8 * 10 + scoring + learning)
    assert str(proxy.savings).startswith("Saved 69.0% of 320 training steps")


def test_it_continues_bit_for_bit():
    straight = proxy_of(StreamPruner(keep=0.5))
    expected = [straight.select(losses) for _ in range(10)]
    first = proxy_of(StreamPruner(keep=0.5))
    for _ in range(5):
        first.select(losses)
    state = copy.deepcopy(first.state_dict())
    second = proxy_of(StreamPruner(keep=0.5))
    second.load_state_dict(state)
    for kept in expected[5:]:
        again = second.select(losses)
        assert torch.equal(again.index, kept.index)
        assert torch.equal(again.weights, kept.weights)
    assert torch.equal(second.model.weight, straight.model.weight)
    assert second.savings == straight.savings


@pytest.mark.parametrize("cost", [-0.1, float("inf"), float("nan"), "cheap", True])
def test_costs_that_raise(cost):
    with pytest.raises(
        ValueError, match="expected what a training step of the proxy costs"
    ) as error:
        proxy_of(Hardest(), cost=cost)
    assert f"Proxy(cost=…) got {cost!r}" in str(error.value)


def test_never_learning_raises():
    with pytest.raises(ValueError, match="every"):
        proxy_of(Hardest(), every=0)


# What it costs.


def test_operations_are_counted_without_a_trace():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Dropout())
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    assert forward_flops(model, torch.ones(5, 1, 4, 4)) == 2 * 5 * 2 * 9 * 4
    assert [layer.training for layer in model] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_share_up_to_a_layer():
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2), nn.Linear(2, 8))
    shares = [share_before(layer, model, torch.zeros(3, 2)) for layer in model]
    assert shares == pytest.approx([0.3, 0.3, 0.6, 1.0])
    with pytest.raises(
        ValueError, match="share_before\\(\\) got a layer Linear that the model's forward pass"
    ):
        share_before(nn.Linear(1, 1), model, torch.zeros(3, 2))
