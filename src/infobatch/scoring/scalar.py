"""A loss that is only a scalar: the coarse fallback."""

from __future__ import annotations

import torch

from infobatch.checks import check_count
from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_range, check_shape
from infobatch.scoring.reduction import at_least_float32
from infobatch.transfer import send


def scalar(
    loss: torch.Tensor,
    batch_size: int,
    *,
    previous: torch.Tensor | None = None,
    momentum: float = 0.9,
) -> PerSample:
    """Spread a batch's scalar loss over its samples: a coarse fallback if all else fails.

    Every sample gets the loss of the whole batch: ``losses.mean()`` is the loss, and ``update``
    multiplies it by the batch's mean weight. The score moves towards the loss of each batch that the
    sample is in, so that over many epochs the effect of the other samples averages out. It
    distinguishes samples far less well than per-sample losses (a batch of B dilutes a sample by B),
    and one weight for the batch is noisier than one per sample. Use per-sample losses if you have
    any access to them.

    Args:
        loss: the scalar.
        batch_size: the number of samples in the batch.
        previous: (B,), the samples' scores so far, NaN where they have none:
            ``train_data.scores[index]``; reading ``train_data.scores`` once per epoch is enough.
            Without it the score is the loss of this batch alone.
        momentum: the share of ``previous`` that the score keeps.

    Returns:
        One loss and one score per sample, (B,) each; all losses are the same.

    Raises:
        TypeError: if ``loss`` is not a floating point scalar.
        ValueError: if ``batch_size`` is below 1, ``previous`` not (B,), or ``momentum`` not in [0, 1].

    >>> scalar(torch.tensor(2.0), 2, previous=torch.tensor([1.0, float("nan")])).scores
    tensor([1.1000, 2.0000])
    """
    call = "scalar()"
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.is_floating_point():
        got = type(loss).__name__
        if isinstance(loss, torch.Tensor):
            got = f"{loss.dtype} of shape {tuple(loss.shape)}"
        raise TypeError(
            f"{call} got {got} as loss, expected a floating point scalar. Per-sample losses need no "
            "scalar(): pass them to update() as they are."
        )
    size = check_count(f"{call}: batch_size", batch_size, "a loss belongs to at least one sample")
    check_range(call, "momentum", momentum, 0.0, 1.0)
    losses = at_least_float32(loss).expand(size)
    scores = losses.detach()
    if previous is not None:
        check_shape(call, "previous", previous, (size,), "Pass the batch's scores: scores[index].")
        known = send(previous.detach(), scores.device, scores.dtype)
        scores = torch.where(known.isnan(), scores, momentum * known + (1 - momentum) * scores)
    return PerSample(losses, scores)
