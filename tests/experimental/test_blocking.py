"""Samples are left out after a layer: by rarity, or unbiased by predicted sizes; counted, resumable."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from infobatch import StreamPruner
from infobatch.experimental.blocking import Blocking, PredictedSizes, Rarity, pooled
from infobatch.experimental.hardest import Hardest

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 4, generator=GENERATOR)
Y = (X[:, 0] + 0.3 * torch.randn(40, generator=GENERATOR) > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def step(model, blocking):
    outputs = model(X)
    kept = blocking.kept
    each = functional.cross_entropy(outputs, Y[kept.index], reduction="none")
    return kept, each


def gradient_of(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


# The hook.


def test_only_the_kept_go_on_and_only_in_training():
    model = network()
    whole = model(X)
    blocking = Blocking(model[1], Rarity(4), Hardest(keep=0.25), cost=0.5)
    seen = []
    model[2].register_forward_hook(lambda layer, inputs, output: seen.append(len(output)))
    outputs = model(X)
    torch.testing.assert_close(
        outputs, whole[blocking.kept.index]
    )  # batches of another size round differently
    assert blocking.features.shape == (10, 6)
    model.eval()
    assert torch.equal(model(X), whole)
    model.train()
    blocking.remove()
    assert torch.equal(model(X), whole)
    assert seen == [10, 40, 40]


def test_the_expected_gradient_is_that_of_the_whole_batch():
    """A z-test in each coordinate over many draws, the layers before the hook included."""
    model = network()
    full = gradient_of(model, functional.cross_entropy(model(X), Y))
    scorer = PredictedSizes()
    blocking = Blocking(model[1], scorer, StreamPruner(keep=0.3, window=40), cost=0.5)
    drawn = []
    for _ in range(3000):
        kept, each = step(model, blocking)
        scorer.learn(blocking.features, -torch.expm1(-each), kept.weights)
        drawn.append(gradient_of(model, kept.mean(each)))
    drawn = torch.stack(drawn)
    error = drawn.std(0) / len(drawn) ** 0.5
    moves = error > 1e-8  # a unit may be off for every sample
    assert ((drawn.mean(0) - full)[moves] / error[moves]).abs().max() < 4
    assert (full[moves] / error[moves]).abs().max() > 20, "there is something to be wrong about"


def test_what_is_left_out_costs_the_layers_before():
    model = network()
    blocking = Blocking(model[1], Rarity(4), Hardest(keep=0.25), cost=0.4)
    assert blocking.savings.fraction == 0
    for _ in range(3):
        model(X)
    assert blocking.savings.cost == pytest.approx(3 * (10 + 30 * 0.4))
    assert blocking.savings.fraction == pytest.approx(0.75 * 0.6)


@pytest.mark.parametrize("scorer", [Rarity, PredictedSizes])
def test_it_continues_bit_for_bit(scorer):
    def trained(blocking, model, steps):
        chosen = []
        for _ in range(steps):
            kept, each = step(model, blocking)
            if isinstance(blocking.scorer, PredictedSizes):
                blocking.scorer.learn(blocking.features, -torch.expm1(-each), kept.weights)
            chosen.append(kept)
        return chosen

    def fresh():
        model = network()
        return Blocking(model[1], scorer(), StreamPruner(keep=0.5), cost=0.5), model

    expected = trained(*fresh(), 8)
    first, model = fresh()
    trained(first, model, 4)
    second, model = fresh()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for kept, again in zip(expected[4:], trained(second, model, 4), strict=True):
        assert torch.equal(kept.index, again.index)
        assert torch.equal(kept.weights, again.weights)


@pytest.mark.parametrize("cost", [-0.1, 1.5, float("nan"), True, "half"])
def test_costs_that_raise(cost):
    with pytest.raises(ValueError, match="expected the share of the model's operations") as error:
        Blocking(nn.Linear(2, 2), Rarity(), Hardest(), cost=cost)
    assert f"Blocking(cost=…) got {cost!r}" in str(error.value)


def test_nothing_is_kept_before_the_first_batch():
    blocking = Blocking(nn.Linear(2, 2), Rarity(), Hardest(), cost=0.5)
    with pytest.raises(
        RuntimeError, match="read before the model's first forward pass in training"
    ):
        blocking.kept  # noqa: B018 - a property


# The scores.


def test_pooling():
    assert pooled(torch.rand(3, 2, 16, 16)).shape == (3, 128)
    assert torch.equal(pooled(X), X), "few features stay as they are"
    assert pooled(torch.ones(1, 300, dtype=torch.bfloat16)).dtype == torch.float32


def test_rare_features_score_highest():
    generator = torch.Generator().manual_seed(0)
    rarity = Rarity(centres=8)
    for _ in range(20):
        rarity.score(torch.randn(64, 5, generator=generator))
    batch = torch.randn(64, 5, generator=generator)
    batch[0] = 9.0
    scores = rarity.score(batch)
    assert scores.argmax() == 0
    far = batch[1:].square().sum(1)
    assert torch.corrcoef(torch.stack([scores[1:], far]))[0, 1] > 0.5, "the tails are rare"


def test_centres_follow_the_data():
    generator = torch.Generator().manual_seed(0)
    rarity = Rarity(centres=4)
    rarity.score(torch.randn(32, 3, generator=generator))
    there = torch.randn(32, 3, generator=generator) * 0.1 + 7
    before = rarity.score(there).mean()
    for _ in range(100):
        after = rarity.score(there).mean()
    assert after < before
    assert (rarity._centres - 7).norm(dim=1).min() < 0.5


def test_predicted_sizes_are_learned():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 3, generator=generator)
    sizes = (0.5 * features[:, 0] - 0.2 * features[:, 1] - 1).exp()
    scorer = PredictedSizes(ridge=1e-6)
    assert scorer.score(features).tolist() == [1.0] * 200
    for start in range(0, 200, 20):
        rows = slice(start, start + 20)
        scorer.learn(features[rows], sizes[rows], torch.ones(20))
    assert torch.allclose(scorer.score(features), sizes, rtol=1e-3)


def test_weights_stand_for_those_left_out():
    """A sample of weight 2 counts like two."""
    features, sizes = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1.0, 4.0, 2.0])
    once, twice = PredictedSizes(), PredictedSizes()
    once.learn(features, sizes, torch.tensor([1.0, 2.0, 1.0]))
    rows = [0, 1, 1, 2]
    twice.learn(features[rows], sizes[rows], torch.ones(4))
    assert torch.allclose(once.score(features), twice.score(features))
    assert not torch.allclose(once.score(features), torch.ones(3))
