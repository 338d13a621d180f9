"""From what each sample adds up to, to losses whose mean is the batch loss, and scores.

Many tasks divide by a number that belongs to the whole batch: all counted pixels, all labelled
tokens, the sum of the class weights. A mean of per-sample means is another number then. The losses
here are each sample's share of the batch loss times the batch size, so that their plain mean is the
batch loss exactly; the scores divide by the sample's own count, so that they do not depend on the
batch.
"""

from __future__ import annotations

import torch

from infobatch.per_sample import PerSample


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """The same numbers, in float32 where they come in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def by_sample(values: torch.Tensor) -> torch.Tensor:
    """All that belongs to a sample in one row."""
    return values.reshape(values.shape[0], -1)


def plain(losses: torch.Tensor) -> PerSample:
    """For batch losses that are plain means over the samples: the loss is the score."""
    return PerSample(losses, losses.detach())


def shares(sums: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Losses with ``losses.mean() == sums.sum() / divisor``; 0 where there is nothing to divide by."""
    divisor = divisor.to(sums)
    return sums * (sums.shape[0] / torch.where(divisor > 0, divisor, 1))


def own_means(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each sample's mean over what counts of it; NaN, for "keeps its old score", if nothing does."""
    means = sums.detach() / counts.clamp_min(1)
    return torch.where(counts > 0, means, torch.nan)
