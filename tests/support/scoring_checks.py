"""Shared by the tests of infobatch.scoring: the contract, checked against a reference."""

import torch


def assert_mean_is(score, reference, *inputs):
    """The losses' plain mean is the reference's batch loss, in value and in every gradient."""
    ours = [value.detach().clone().requires_grad_() for value in inputs]
    theirs = [value.detach().clone().requires_grad_() for value in inputs]
    result = score(*ours)
    assert_well_formed(result)
    mean, expected = result.losses.mean(), reference(*theirs)
    torch.testing.assert_close(mean, expected.to(mean.dtype), atol=1e-6, rtol=1e-6)
    mean.backward()
    expected.backward()
    for our, their in zip(ours, theirs, strict=True):
        assert their.grad.abs().sum() > 0
        torch.testing.assert_close(our.grad, their.grad, atol=1e-6, rtol=1e-5)
    return result


def assert_well_formed(result):
    losses, scores = result
    assert losses.dim() == 1
    assert losses.requires_grad
    assert scores.shape == losses.shape
    assert not scores.requires_grad
    assert scores.dtype in (torch.float32, torch.float64)


def assert_scored_alone(score, size, result):
    """Each sample has the score that it has in a batch of its own; ``score(i)`` scores it alone."""
    alone = torch.cat([score(slice(i, i + 1)).scores for i in range(size)])
    torch.testing.assert_close(alone, result.scores, equal_nan=True)


def assert_finite_gradient(result, *inputs):
    gradients = torch.autograd.grad(result.losses.mean(), inputs)
    assert result.losses.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    return gradients
