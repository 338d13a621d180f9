"""Regression: torch's losses, and pruning that does not ask for the unit."""

import pytest
import torch
from torch.nn import functional

import infobatch
from infobatch import scoring
from scoring_checks import assert_mean_is, assert_scored_alone

SHAPES = [(6,), (6, 1), (6, 3), (6, 2, 4)]


def pinball(predictions, targets, q):
    errors = targets - predictions
    return torch.where(errors >= 0, q * errors, (q - 1) * errors)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("score", "reference"),
    [
        (scoring.mse, functional.mse_loss),
        (scoring.huber, functional.huber_loss),
        (
            lambda x, y: scoring.huber(x, y, delta=0.3),
            lambda x, y: functional.huber_loss(x, y, delta=0.3),
        ),
        (lambda x, y: scoring.quantile(x, y, 0.9), lambda x, y: pinball(x, y, 0.9).mean()),
    ],
)
def test_beside_torch(shape, score, reference):
    predictions, targets = torch.randn(shape), torch.randn(shape)
    result = assert_mean_is(
        lambda x: score(x, targets), lambda x: reference(x, targets), predictions
    )
    assert_scored_alone(lambda i: score(predictions[i], targets[i]), 6, result)


def test_several_quantiles():
    predictions, targets = torch.randn(6, 2, 3), torch.randn(6, 2)
    levels = (0.1, 0.5, 0.9)
    assert_mean_is(
        lambda x: scoring.quantile(x, targets, levels),
        lambda x: torch.stack(
            [pinball(x[..., k], targets, q) for k, q in enumerate(levels)]
        ).mean(),
        predictions,
    )


def test_the_median_is_half_the_absolute_error():
    predictions, targets = torch.randn(6), torch.randn(6)
    losses = scoring.quantile(predictions, targets, 0.5).losses
    torch.testing.assert_close(losses, (predictions - targets).abs() / 2)


CALLS = {
    "mse": lambda x, y, unit, **options: scoring.mse(x, y, **options),
    "huber": lambda x, y, unit, **options: scoring.huber(x, y, delta=0.5 * unit, **options),
    "quantile": lambda x, y, unit, **options: scoring.quantile(x, y, 0.8, **options),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("unit", [1024.0, 2.0**-20])
def test_the_unit_does_not_change_the_plan(name, unit):
    """Powers of two, which round nothing: metres or kilo-metres prune the same samples, bit for bit."""

    def plan(scale):
        torch.manual_seed(0)
        pruner = infobatch.Pruner(400, 3, delta=1.0)
        predictions, targets = scale * torch.randn(400), scale * torch.randn(400)
        pruner.update(CALLS[name](predictions, targets, scale), index=torch.arange(400))
        pruner.set_epoch(1)
        return pruner.plan

    plain, scaled = plan(1.0), plan(unit)
    assert not plain.whole
    assert torch.equal(plain.order, scaled.order)
    assert torch.equal(plain.weights, scaled.weights)


@pytest.mark.parametrize("name", CALLS)
def test_outputs_of_different_units(name):
    """``scale`` takes each output's unit out of the score, and does not touch the loss."""
    predictions, targets = torch.randn(6, 2), torch.randn(6, 2)
    units = torch.tensor([1.0, 1000.0])
    call = CALLS[name]
    scaled = call(predictions * units, targets * units, 1.0, scale=units)
    assert torch.equal(scaled.losses, call(predictions * units, targets * units, 1.0).losses)
    degree = 1 if name == "quantile" else 2  # how the loss grows with its unit
    by_sample = [
        call(predictions[:, k] * unit, targets[:, k] * unit, 1.0).scores / unit**degree
        for k, unit in enumerate(units)
    ]
    torch.testing.assert_close(scaled.scores, torch.stack(by_sample).mean(0))
    if name != "huber":  # whose delta keeps its unit: the loss itself is another one then
        torch.testing.assert_close(scaled.scores, call(predictions, targets, 1.0).scores)


def test_one_scale_for_all_outputs():
    predictions, targets = torch.randn(6, 2), torch.randn(6, 2)
    scores = scoring.mse(predictions, targets, scale=2.0).scores
    torch.testing.assert_close(scores, scoring.mse(predictions, targets).scores / 4)


def test_integer_targets():
    predictions = torch.randn(5)
    losses = scoring.mse(predictions, torch.arange(5)).losses
    torch.testing.assert_close(losses, (predictions - torch.arange(5)) ** 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: scoring.mse(torch.zeros(4, 1), torch.zeros(4)),
            r"mse\(\) got targets of shape \(4,\), expected \(4, 1\). .* every pair",
        ),
        (
            lambda: scoring.huber(torch.tensor(1.0), torch.tensor(1.0)),
            r"huber\(\) got predictions of shape \(\), expected \(B,\)",
        ),
        (lambda: scoring.quantile(torch.zeros(4), torch.zeros(4), 1.5), r"quantile\(\) got q=1.5"),
        (
            lambda: scoring.quantile(torch.zeros(4, 2), torch.zeros(4), (0.1, 0.5, 0.9)),
            r"quantile\(\) got predictions of shape \(4, 2\), expected \(4, 3\)",
        ),
        (
            lambda: scoring.quantile(torch.zeros(4, 3), torch.zeros(4, 3), (0.1, 0.5, 0.9)),
            r"targets of shape \(4, 3\), expected \(4,\)",
        ),
        (
            lambda: scoring.mse(torch.zeros(4, 2), torch.zeros(4, 2), scale=torch.ones(3)),
            r"mse\(\) got scale of shape \(3,\), expected \(2,\). Pass one number per output",
        ),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
