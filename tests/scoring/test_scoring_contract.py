"""What holds for every scoring function: any dtype, and update takes it (tests/accelerators: on a device)."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch import scoring
from scoring_checks import assert_well_formed

B, C = 6, 5


def cases():
    """For each function: a call on the model's outputs, their shapes, and what else it takes."""
    torch.manual_seed(1)
    targets = torch.randint(C, (B,))
    masks = torch.randint(C, (B, 4, 4))
    masks[0] = 255
    labels = torch.randint(C, (B, 7))
    labels[0] = -100
    timesteps = torch.randint(1000, (B,))
    alphas = torch.linspace(0.99, 0.01, 1000)
    weight, multi_hot = torch.rand(C), torch.rand(B, C).round()
    patches, hidden = torch.rand(B, 4, C), torch.tensor([[1, 1, 0, 0]] * B)
    images, texts = torch.randn(B, C), torch.randn(B, C)
    permutation, lam, scale = torch.randperm(B), torch.rand(B), torch.rand(C) + 1
    boundaries = torch.tensor([0, 7, 10, 42])
    means = scoring.TimestepMeans(1000)
    means.update(torch.rand(5000), torch.randint(1000, (5000,)))

    def diffusion(x, target, timesteps, alphas):
        weights = scoring.min_snr_weights(alphas, timesteps)
        target = scoring.diffusion_target("v_prediction", target, target, timesteps, alphas)
        return scoring.diffusion(x, target, timesteps, weights=weights, timestep_means=means)

    s = scoring
    return {
        "cross_entropy": (s.cross_entropy, (B, C), (targets,)),
        "cross_entropy weighted": (
            lambda x, y, w: s.cross_entropy(x, y, weight=w, label_smoothing=0.1),
            (B, C),
            (targets, weight),
        ),
        "cross_entropy soft": (s.cross_entropy, (B, C), (multi_hot,)),
        "cross_entropy gradient": (
            lambda x, y, w: s.cross_entropy(
                x, y, weight=w, label_smoothing=0.1, ignore_index=255, score="gradient"
            ),
            (B, C, 4, 4),
            (masks, weight),
        ),
        "cross_entropy gradient soft": (
            lambda x, y: s.cross_entropy(x, y, score="gradient"),
            (B, C),
            (multi_hot,),
        ),
        "binary_cross_entropy": (
            lambda x, y, w: s.binary_cross_entropy(x, y, weight=w, pos_weight=w),
            (B, C),
            (multi_hot, weight),
        ),
        "focal": (lambda x, y, w: s.focal(x, y, alpha=w), (B, C), (targets, weight)),
        "focal multi-hot": (lambda x, y: s.focal(x, y, alpha=0.25), (B, C), (multi_hot,)),
        "mixed_cross_entropy": (s.mixed_cross_entropy, (B, C), (targets, permutation, lam)),
        "segmentation": (
            lambda x, y, w: s.segmentation(x, y, weight=w, auxiliary=[(x, 0.4)]),
            (B, C, 4, 4),
            (masks, weight),
        ),
        "masked_autoencoding": (
            lambda x, p, m: s.masked_autoencoding(x, p, m, normalise=True),
            (B, 4, C),
            (patches, hidden),
        ),
        "diffusion": (diffusion, (B, C), (images, timesteps, alphas)),
        "causal_lm": (s.causal_lm, (B, 7, C), (labels,)),
        "causal_lm packed": (
            lambda x, y, b: s.causal_lm(x, y, boundaries=b, num_items=50),
            (B, 7, C),
            (labels, boundaries),
        ),
        "detection": (
            lambda x, n: s.detection({"a": x, "b": x}, {"a": 2.0}, counts=n),
            (B,),
            (lam,),
        ),
        "contrastive": (s.contrastive, (B, C), (texts,)),
        "mse": (lambda x, y, u: s.mse(x, y, scale=u), (B, C), (images, scale)),
        "huber": (lambda x, y, u: s.huber(x, y, scale=u), (B, C), (images, scale)),
        "quantile": (lambda x, y: s.quantile(x, y, (0.1, 0.2, 0.4, 0.5, 0.9)), (B, C), (lam,)),
        "scalar": (lambda x, p: s.scalar(x.mean(), B, previous=p), (B,), (lam,)),
    }


NAMES = list(cases())


def test_every_public_function_is_here():
    helpers = {
        "PerSample",
        "TimestepMeans",
        "diffusion_target",
        "min_snr_weights",
        "per_sequence",
        "sequence_boundaries",
        "token_losses",
    }
    assert {name.split()[0] for name in NAMES} == set(scoring.__all__) - helpers
    for name in scoring.__all__:
        assert getattr(scoring, name).__doc__, name
    assert infobatch.scoring is scoring


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_dtype(name, dtype):
    call, shape, others = cases()[name]
    output = torch.randn(shape).to(dtype).requires_grad_()
    result = call(output, *others)
    assert_well_formed(result)
    assert result.losses.dtype == (dtype if dtype == torch.float64 else torch.float32)
    result.losses.mean().backward()
    assert output.grad.dtype == dtype
    assert output.grad.isfinite().all()
    assert result.losses.isfinite().all()
    exact = cases()[name][0](output.detach().double().requires_grad_(), *others)
    torch.testing.assert_close(
        result.scores.double(), exact.scores.double(), rtol=1e-3, atol=1e-3, equal_nan=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name):
    call, shape, others = cases()[name]
    output = torch.randn(shape, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        result = call(output, *others)
    assert_well_formed(result)
    plain = cases()[name][0](output, *others)
    torch.testing.assert_close(result.scores, plain.scores, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_was_passed_is_changed(name):
    call, shape, others = cases()[name]
    output = torch.randn(shape, requires_grad=True)
    before = [value.clone() for value in (output, *others)]
    call(output, *others)
    for was, value in zip(before, (output, *others), strict=True):
        assert torch.equal(was, value)


def test_three_lines():
    """The three-line form with a PerSample: weighted loss out, scores in, NaN keeps the old one."""
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    train_data = infobatch.InfoBatch(TensorDataset(x, y, torch.arange(64)), 4, delta=1.0)
    loader = DataLoader(train_data, 16, sampler=train_data.sampler)
    model = nn.Linear(5, 3)
    weight = torch.tensor([1.0, 2.0, 3.0])
    latest = torch.full((64,), torch.nan)
    unlabelled = 0
    for epoch in range(3):
        weights = torch.zeros(64)
        for step, (inputs, targets, samples) in enumerate(loader):
            if step == 0:
                weights[train_data.plan.order] = train_data.plan.weights.float()
            if epoch == 2:
                targets[0] = -100
                unlabelled += 1
            result = scoring.cross_entropy(model(inputs), targets, weight=weight)
            loss = train_data.update(result)
            counts = torch.where(targets < 0, 0, weight[targets.clamp(min=0)])
            sums = result.losses * counts.sum() / len(samples)
            chosen = weights[samples]  # the divisor is weighted as well
            expected = (chosen * sums).sum() / (chosen * counts).sum() * chosen.mean()
            torch.testing.assert_close(loss, expected)
            loss.backward()
            latest[samples] = torch.where(result.scores.isnan(), latest[samples], result.scores)
        assert torch.equal(train_data.scores, latest)
    assert train_data.savings.unscored == unlabelled > 0
    assert train_data.savings.saved > 0


def test_packed_sequences_by_index():
    """Rows of several sequences: an index for each sequence."""
    pruner = infobatch.Pruner(5, 2)
    logits, labels = torch.randn(2, 6, C, requires_grad=True), torch.randint(C, (2, 6))
    boundaries = torch.tensor([0, 2, 6, 9, 12])
    result = scoring.causal_lm(logits, labels, boundaries=boundaries)
    pruner.update(result, index=torch.tensor([4, 0, 3, 1])).backward()
    assert torch.equal(pruner.scores[[4, 0, 3, 1]], result.scores)
    assert pruner.scores[2].isnan()
