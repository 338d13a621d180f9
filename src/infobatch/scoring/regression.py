"""Regression: squared error, Huber and quantile loss.

The pruning rule compares scores with their mean, so the unit of the target does not matter: metres
and millimetres prune the same samples. It matters if a sample has outputs in several units: the
largest numbers would then dominate. ``scale`` is the typical size of an error of each output; it
changes the score but not the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional

from infobatch.per_sample import PerSample, Sizes
from infobatch.scoring.checks import check_range, check_shape, check_tensor
from infobatch.scoring.reduction import at_least_float32, by_sample, with_sizes
from infobatch.transfer import send

Scale = torch.Tensor | float | None


def mse(predictions: torch.Tensor, targets: torch.Tensor, *, scale: Scale = None) -> PerSample:
    """Squared error, the mean over a sample's outputs; ``losses.mean()`` is ``F.mse_loss``.

    Args:
        predictions, targets: both (B,) or both (B, …).
        scale: the size of an error by output (for instance its standard deviation), only for the
            score: a number, or a tensor in the shape of a sample.

    Returns:
        One loss and one score per sample, (B,) each.

    Raises:
        ValueError: if predictions and targets differ in shape, or ``scale`` is not one per output.
        TypeError: if the predictions are not floating point numbers.

    >>> mse(torch.tensor([[1.0, 100.0], [0.0, 0.0]]), torch.zeros(2, 2), scale=torch.tensor([1, 100])).scores
    tensor([1., 0.])
    """
    predictions, targets = _pair("mse()", predictions, targets)
    errors = predictions - targets
    return _averaged("mse()", errors.square(), lambda: errors, scale, degree=2)


def huber(
    predictions: torch.Tensor,
    targets: torch.Tensor,
    *,
    delta: float = 1.0,
    scale: Scale = None,
) -> PerSample:
    """Huber loss, the mean over a sample's outputs; ``losses.mean()`` is ``F.huber_loss``.

    Args:
        predictions, targets, scale: as in :func:`mse`.
        delta: the error above which the loss is linear, in the unit of the targets: if the unit
            changes, change it too, or the loss is a different one.

    Returns:
        One loss and one score per sample, (B,) each.

    Raises:
        ValueError: if predictions and targets differ in shape, or ``scale`` is not one per output.
        TypeError: if the predictions are not floating point numbers.

    >>> huber(torch.tensor([0.5, 3.0]), torch.zeros(2)).losses
    tensor([0.1250, 2.5000])
    """
    predictions, targets = _pair("huber()", predictions, targets)
    losses = functional.huber_loss(predictions, targets, delta=delta, reduction="none")
    errors = predictions.detach() - targets
    slopes = partial(errors.clamp, -delta, delta)
    return _averaged("huber()", losses, slopes, scale, degree=2)


def quantile(
    predictions: torch.Tensor,
    targets: torch.Tensor,
    q: float | Sequence[float],
    *,
    scale: Scale = None,
) -> PerSample:
    """Quantile (pinball) loss, max(q·e, (q − 1)·e) with e = target − prediction.

    Args:
        predictions: (B, …) like the targets; for several quantiles, one more dimension at the end.
        targets: (B, …).
        q: the quantile in [0, 1], or several, over which the loss is averaged.
        scale: as in :func:`mse`.

    Returns:
        One loss and one score per sample, (B,) each.

    Raises:
        ValueError: if shapes do not fit, or a quantile is not in [0, 1].
        TypeError: if the predictions are not floating point numbers.

    >>> quantile(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0]), 0.9).losses
    tensor([0.9000, 0.1000])
    """
    call = "quantile()"
    rising: torch.Tensor | float
    if isinstance(q, int | float):
        predictions, targets = _pair(call, predictions, targets)
        errors = targets - predictions
        rising = check_range(call, "q", q, 0.0, 1.0)
        losses = torch.maximum(rising * errors, (rising - 1) * errors)
    else:
        check_tensor(call, "predictions", predictions, "(B, …, number of quantiles)", least_dims=2)
        levels = [check_range(call, "q", level, 0.0, 1.0) for level in q]
        remedy = f"Predictions for {len(levels)} quantiles are (B, …, {len(levels)})."
        check_shape(
            call, "predictions", predictions, (*predictions.shape[:-1], len(levels)), remedy
        )
        check_shape(call, "targets", targets, tuple(predictions.shape[:-1]), remedy)
        predictions = at_least_float32(predictions)
        targets = send(targets, predictions.device, predictions.dtype)
        errors = targets.unsqueeze(-1) - predictions
        rising = send(torch.tensor(levels, dtype=errors.dtype), errors.device)
        losses = torch.maximum(rising * errors, (rising - 1) * errors).mean(-1)
    return _averaged(
        call, losses, lambda: torch.where(errors > 0, rising, rising - 1), scale, degree=1
    )


def _pair(
    call: str, predictions: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    check_tensor(call, "predictions", predictions, "(B,) or (B, …)", least_dims=1)
    remedy = (
        "Give both the same shape (predictions.squeeze(1)?): broadcasting would compare every pair."
    )
    check_shape(call, "targets", targets, tuple(predictions.shape), remedy)
    predictions = at_least_float32(predictions)
    return predictions, send(targets, predictions.device, predictions.dtype)


def _averaged(
    call: str, losses: torch.Tensor, slopes: Sizes, scale: Scale, *, degree: int
) -> PerSample:
    """The mean over the outputs; for the score, each divided by ``scale`` to the loss's degree.

    ``slopes`` are the derivatives with respect to the predictions, up to a common factor.
    """
    means = by_sample(losses).mean(1)

    def squares() -> torch.Tensor:
        return by_sample(slopes()).square().mean(1)

    if scale is None:
        return with_sizes(means, means.detach(), squares)
    if isinstance(scale, torch.Tensor):
        sample = tuple(losses.shape[1:])
        if scale.dim():
            check_shape(call, "scale", scale, sample, "Pass one number per output.")
        scale = send(scale, losses.device, losses.dtype)
    relative = losses.detach() / scale**degree
    return with_sizes(means, by_sample(relative).mean(1), squares)
