"""Samples are left out after a layer: by rarity, or unbiased by predicted sizes; counted, resumable."""

import copy
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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


METHODS = {
    "rarity": lambda: (Rarity(), Hardest(keep=0.5, ramp=6, mean_over="kept")),
    "sizes": lambda: (PredictedSizes(), StreamPruner(keep=0.5)),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_it_continues_bit_for_bit(method):
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
        return Blocking(model[1], *method(), cost=0.5), model

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
    with pytest.raises(RuntimeError, match="read before the model's first forward pass, expected"):
        blocking.kept  # noqa: B018 - a property


def test_rarities_are_not_for_a_draw_by_sizes():
    with pytest.raises(
        ValueError, match=r"Blocking\(\) got Rarity\(\) with a StreamPruner"
    ) as error:
        Blocking(nn.Linear(2, 2), Rarity(), StreamPruner(), cost=0.5)
    assert "Use Hardest(keep=0.6) with Rarity(), or PredictedSizes()" in str(error.value)


@pytest.mark.parametrize("mode", ["without gradients", "with the layer in evaluation mode"])
def test_nothing_is_left_out_without_a_training_step(mode):
    """Not in a pass that only looks, and not behind a frozen layer, where reading what was kept says so."""
    model = network()
    whole = model(X)
    blocking = Blocking(model[1], Rarity(), Hardest(keep=0.5), cost=0.5)
    model(X)
    model[1].train(mode == "without gradients")
    with torch.set_grad_enabled(mode != "without gradients"):
        assert torch.equal(model(X), whole)
    assert blocking.savings.scored == 40
    expected = f"read after a forward pass {mode}, expected after one with gradients"
    with pytest.raises(RuntimeError, match=expected) as error:
        blocking.kept  # noqa: B018 - a property
    assert "frozen in evaluation mode, name an nn.Identity() behind them" in str(error.value)
    model.train()
    model(X)
    assert len(blocking.kept) == 20


@pytest.mark.parametrize(
    ("output", "described"),
    [
        ((X, None), "a tuple"),
        (X[:, 0], r"a tensor of shape \(40,\)"),
        (X.mean(), r"a tensor of shape \(\)"),
    ],
)
def test_outputs_without_a_row_of_features_for_each_sample_raise(output, described):
    class Layer(nn.Module):
        def forward(self):
            return output

    layer = Layer()
    Blocking(layer, Rarity(), Hardest(), cost=0.5)
    expected = f"got {described} as the output of its Layer, expected a tensor with a row for each"
    with pytest.raises(TypeError, match=expected):
        layer()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_checkpoint_has_the_same_rows_again(method):
    """The layer runs twice for one batch, which is chosen from and counted once."""
    gradients = []
    for through in (lambda model, x: model(x), lambda *of: checkpoint(*of, use_reentrant=False)):
        model = network()
        blocking = Blocking(model[1], *method(), cost=0.5)
        gradients.append([])
        for _ in range(3):
            outputs = through(model, X)
            kept = blocking.kept
            each = functional.cross_entropy(outputs, Y[kept.index], reduction="none")
            gradients[-1].append(gradient_of_all(model, kept.mean(each)))
            assert blocking.kept is kept
        assert blocking.savings.scored == 120
    assert torch.equal(*map(torch.stack, gradients))


def gradient_of_all(model, loss):
    """As a training step computes it: ``autograd.grad`` does not work with checkpoints."""
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_a_checkpoint_of_an_earlier_batch_raises():
    model = network()
    Blocking(model[1], Rarity(), Hardest(keep=0.5), cost=0.5)
    first, second = (checkpoint(model, x, use_reentrant=False) for x in (X, X + 1))
    with pytest.raises(RuntimeError, match="call backward\\(\\) before the next forward pass, or"):
        (first.sum() + second.sum()).backward()


def test_a_reentrant_checkpoint_raises():
    """Its first pass is without gradients."""
    model = network()
    blocking = Blocking(model[1], Rarity(), Hardest(keep=0.5), cost=0.5)
    checkpoint(model, X.clone().requires_grad_(), use_reentrant=True)
    with pytest.raises(
        RuntimeError, match="if a checkpoint runs the layer, pass it use_reentrant=Fal"
    ):
        blocking.kept  # noqa: B018 - a property


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, where it splits the graph
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_compiled_model_has_the_same_rows(method):
    losses = []
    for compiled in (False, True):
        model = network()
        blocking = Blocking(model[1], *method(), cost=0.5)
        forward = torch.compile(model, backend="eager") if compiled else model
        losses.append([])
        for _ in range(4):
            outputs = forward(X)
            kept = blocking.kept
            each = functional.cross_entropy(outputs, Y[kept.index], reduction="none")
            if isinstance(blocking.scorer, PredictedSizes):
                blocking.scorer.learn(blocking.features, -torch.expm1(-each), kept.weights)
            losses[-1].append(kept.mean(each).detach())
        model.eval()
        assert len(forward(X)) == 40
    assert torch.equal(*map(torch.stack, losses))
    torch._dynamo.reset()


# Values that are not finite.


BAD = [torch.inf, -torch.inf, torch.nan]


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize(
    ("scorer", "bad"), [*product([Rarity, PredictedSizes], BAD), (Rarity, 1e30)]
)
def test_features_that_are_not_finite_spoil_only_their_sample(scorer, bad, batch):
    """It has no score, and the scorer learns what it would have learned from the other samples."""
    scorer, expected = scorer(), scorer()
    for number in range(6):
        features = 0.9**number * X
        others = torch.arange(40) != (3 if number == batch else -1)
        spoiled = features.where(others[:, None], bad)
        scores = scorer.score(spoiled)
        assert torch.allclose(scores[others], expected.score(features[others]), atol=1e-4)
        assert torch.equal(scores.isfinite(), others)
        if isinstance(scorer, PredictedSizes):
            sizes = features[:, 0].abs() + 0.1
            scorer.learn(spoiled, sizes, torch.ones(40))
            expected.learn(features[others], sizes[others], torch.ones(int(others.sum())))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_sample_without_a_score_is_kept_and_counted(method):
    layer = nn.Identity()
    blocking = Blocking(layer, *method(), cost=0.5)
    for number in range(8):
        x = X.clone()
        if number == 3:
            x[5] = torch.nan
        layer(x)
        kept = blocking.kept
        if isinstance(blocking.scorer, PredictedSizes):
            blocking.scorer.learn(blocking.features, kept.index + 1.0, kept.weights)
        assert number != 3 or 5 in kept.index
    assert len(kept) < 40
    assert blocking.savings.unscored == 1


def test_nothing_is_learned_from_losses_that_are_not_finite():
    clean, scorer = PredictedSizes(), PredictedSizes()
    sizes = X[:, 0].abs() + 0.1
    for number in range(3):
        some = torch.arange(40) % 7 != number
        clean.learn(X[some], sizes[some], torch.ones(int(some.sum())))
        scorer.learn(
            X, sizes.where(some, [torch.nan, torch.inf, -torch.nan][number]), torch.ones(40)
        )
    assert torch.equal(clean.score(X), scorer.score(X))
    scorer.learn(X, torch.full((40,), torch.nan), torch.ones(40))
    scorer.learn(X, sizes, torch.full((40,), torch.inf))
    assert torch.equal(clean.score(X), scorer.score(X)), "a batch without any"
    untaught = PredictedSizes()
    untaught.learn(X, torch.full((40,), torch.nan), torch.ones(40))
    assert untaught.score(X).tolist() == [1.0] * 40


@pytest.mark.parametrize("seen", [0, 2])
def test_an_empty_batch_raises_and_changes_nothing(seen):
    scorer, expected = Rarity(8), Rarity(8)
    for rarity in (scorer, expected):
        for _ in range(seen):
            rarity.score(X)
    layer = nn.Identity()
    Blocking(layer, scorer, Hardest(), cost=0.5)
    with pytest.raises(ValueError, match=r"Hardest.select\(\) got scores of shape \(0,\)"):
        layer(X[:0])
    assert torch.equal(scorer.score(X), expected.score(X))


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
