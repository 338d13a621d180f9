"""A loss that is only a scalar: the coarse fallback."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch import scoring
from scoring_checks import assert_well_formed


def test_the_mean_is_the_scalar():
    parameter = torch.tensor(1.7, requires_grad=True)
    result = scoring.scalar(parameter**2, 5)
    assert_well_formed(result)
    torch.testing.assert_close(result.losses.mean(), parameter**2)
    assert result.scores.tolist() == [pytest.approx(1.7**2)] * 5
    (gradient,) = torch.autograd.grad(result.losses.mean(), parameter)
    torch.testing.assert_close(gradient, torch.tensor(3.4))


def test_the_score_moves():
    previous = torch.tensor([1.0, float("nan"), 3.0])
    scores = scoring.scalar(torch.tensor(2.0), 3, previous=previous, momentum=0.75).scores
    torch.testing.assert_close(scores, torch.tensor([1.25, 2.0, 2.75]))


def test_update_multiplies_by_the_mean_weight():
    pruner = infobatch.Pruner(100, 3, delta=1.0)
    pruner.update(torch.arange(100.0), index=torch.arange(100))
    pruner.set_epoch(1)
    index, weights = pruner.plan.order[:20], pruner.plan.weights[:20]
    parameter = torch.tensor(2.0, requires_grad=True)
    loss = pruner.update(scoring.scalar(parameter**2, 20), index=index)
    torch.testing.assert_close(loss, (4 * weights.mean()).to(loss.dtype))
    loss.backward()
    torch.testing.assert_close(parameter.grad, (4 * weights.mean()).to(loss.dtype))


def test_hard_samples_show_after_many_epochs():
    """A fifth of the samples have a loss of 5, the rest 1, and only batch means are seen."""
    hard = torch.arange(200) < 40
    data = TensorDataset(torch.where(hard, 5.0, 1.0))
    pruner = infobatch.Pruner(200, 100, policy="none")
    loader = DataLoader(
        infobatch.Indexed(data), 8, sampler=pruner.sampler, collate_fn=infobatch.with_index()
    )
    for _ in range(60):
        scores = pruner.scores
        for index, (x,) in loader:
            pruner.update(scoring.scalar(x.mean(), len(x), previous=scores[index]), index=index)
    gap = pruner.scores[hard].mean() - pruner.scores[~hard].mean()
    assert 0.25 < gap < 1.0  # far from 4: that is how coarse it is


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: scoring.scalar(2.0, 3), TypeError, r"got float as loss"),
        (
            lambda: scoring.scalar(torch.ones(3), 3),
            TypeError,
            r"shape \(3,\) as loss, .* to update\(\)",
        ),
        (lambda: scoring.scalar(torch.tensor(2), 3), TypeError, r"torch.int64"),
        (
            lambda: scoring.scalar(torch.tensor(2.0), 0),
            ValueError,
            r"batch_size got 0, expected an integer >= 1",
        ),
        (
            lambda: scoring.scalar(torch.tensor(2.0), 3, previous=torch.ones(2)),
            ValueError,
            r"previous of shape \(2,\), expected \(3,\)",
        ),
        (
            lambda: scoring.scalar(torch.tensor(2.0), 3, momentum=1.1),
            ValueError,
            r"momentum=1.1, expected a number from 0.0 to 1.0",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=r"scalar\(\).*" + text):
        call()
