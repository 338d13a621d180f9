"""The weighted mean that a training loop gets back."""

from __future__ import annotations

import math

import torch

from infobatch.ledger import Ledger


def weighted_mean_at(
    call: str, ledger: Ledger, index: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor, bool]:
    """The weighted mean by sample, and whether all losses are known to be finite.

    On a CPU, where a look costs nothing, refuse samples that the plan leaves out.
    """
    try:
        shares = ledger.shares_of_mean_at(index, losses)
    except (IndexError, RuntimeError) as error:
        if int(index.min()) >= 0 and int(index.max()) < ledger.plan.num_samples:
            raise  # something else is wrong
        raise IndexError(
            f"{call}(index=…) got indices from {int(index.min())} to {int(index.max())}, expected "
            f"0 to {ledger.plan.num_samples - 1}. Pass the index that the batch of Indexed carries."
        ) from error
    loss = weighted_mean(losses, shares)
    if losses.device.type != "cpu":
        return loss, False
    mean = loss.item()
    if math.isnan(mean):
        strangers = index[shares.isnan()].tolist()
        if strangers:
            raise IndexError(
                f"{call}(index=…) got samples that this epoch's plan leaves out: {strangers[:5]}"
                f"{' …' if len(strangers) > 5 else ''}. Expected batches of this epoch, of a loader "
                "with this pruner's sampler; one that was fetched before set_epoch() is of the past."
            )
    return loss, math.isfinite(mean)


def weighted_mean(losses: torch.Tensor, shares: torch.Tensor | None) -> torch.Tensor:
    """The mean of weight × loss, where shares = weight / count; None stands for weights of 1."""
    if shares is None:
        return losses.mean()
    if losses.dtype is shares.dtype:
        return torch.dot(losses, shares)
    return torch.dot(losses.to(shares.dtype), shares).to(losses.dtype)
