"""Reduction of per-sample sums to losses whose mean is the batch loss, and to scores.

Many tasks divide by a number that belongs to the whole batch: all counted pixels, all labelled
tokens, the sum of the class weights. A mean of per-sample means is then a different number. The
losses here are each sample's share of the batch loss times the batch size, so that their plain mean
is exactly the batch loss; the scores divide by the sample's own count, so that they do not depend
on the batch. The counts themselves go with them, because their weighted mean is needed in pruned epochs.
"""

from __future__ import annotations

import torch

from infobatch.per_sample import Measured, PerSample, Sizes
from infobatch.transfer import send


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Convert half precision to float32; leave other types unchanged."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def by_sample(values: torch.Tensor) -> torch.Tensor:
    """Flatten everything that belongs to a sample into one row."""
    return values.reshape(values.shape[0], -1)


def with_sizes(
    losses: torch.Tensor,
    scores: torch.Tensor,
    squares: Sizes,
    counts: torch.Tensor | None = None,
) -> PerSample:
    """The losses and scores with the sizes of the gradients, whose squares are computed if needed.

    ``counts`` are what the losses are divided by the sum of.
    """
    return PerSample(losses, scores, Measured(lambda: squares().detach().sqrt()), counts)


def missing_squares(losses: torch.Tensor) -> torch.Tensor:
    """(1 − p)² of labels with cross-entropies −log p: a label's part of ‖softmax − target‖²."""
    return torch.expm1(-losses.detach()).square()


def shares(sums: torch.Tensor, divisor: torch.Tensor | float) -> torch.Tensor:
    """Losses with ``losses.mean() == sums.sum() / divisor``; 0 if the divisor is 0."""
    divisor = torch.as_tensor(divisor).to(sums.dtype)
    if divisor.dim():  # a number of the host can stay there: it is an argument of the kernel
        divisor = send(divisor, sums.device)
    return sums * (sums.shape[0] / torch.where(divisor > 0, divisor, 1))


def own_means(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each sample's mean over what counts in it; NaN ("keeps its old score") if nothing does."""
    means = sums.detach() / counts.clamp_min(1)
    return torch.where(counts > 0, means, torch.nan)
