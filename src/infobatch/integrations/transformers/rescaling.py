"""How a sample's loss contributes to the loss that the Trainer differentiates.

If the model's loss supports it, the Trainer divides by the items (usually tokens) of all batches in
an optimizer step, over all ranks; otherwise the model divides by those of the single batch. Only
the loss itself shows which of the two a model does, so the first step in which they differ compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from infobatch import PerSample
from infobatch.integrations.transformers.losses import IGNORED

WAY_OUT = (
    "Override per_sample_losses(self, model, inputs, outputs): return one loss per sample, whose mean is "
    "the batch's loss"
)


class ItemShares(NamedTuple):
    """The factors of the mean of a batch's losses, for division by items or by batch."""

    by_items: Any
    by_batch: float
    before_ranks: Any  # like by_items, before the Trainer corrects for the mean over ranks
    accumulates: bool  # optimizer steps have several batches, except for an epoch's last

    @classmethod
    def of(
        cls, trainer: Any, inputs: Mapping[str, Any], num_items: Any, *, shift: bool
    ) -> ItemShares:
        """The factors for a batch; ``num_items`` counts the items of the whole optimizer step.

        ``shift`` means that the first label of each row is not trained on: nothing predicts it.
        """
        accumulates = trainer.args.gradient_accumulation_steps > 1
        if num_items is None:
            share = 1 / trainer.current_gradient_accumulation_steps
            return cls(share, 1.0, share, accumulates)
        if inputs.get("shift_labels") is not None:
            labels = inputs["shift_labels"]
        else:
            labels = inputs["labels"][..., 1 if shift else 0 :]
        share = labels.ne(IGNORED).sum() / num_items
        ranks = 1
        if trainer.args.average_tokens_across_devices:
            ranks = trainer.accelerator.num_processes // trainer.get_tp_size()
        return cls(share * ranks, float(ranks), share, accumulates)

    def distance(self, loss: torch.Tensor, mean: torch.Tensor) -> float:
        """The distance of the samples' mean from the batch's loss, with the closer factor."""
        got = float(loss)
        return min(abs(got - float(mean * factor)) for factor in (self.by_items, self.by_batch))


class Share:
    """Decides which of the two factors the model's loss has.

    ``trusted`` means that the user defines the samples' losses, so that a difference (for instance
    an auxiliary loss that belongs to no sample) is intended and left alone.
    """

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._by_items: bool | None = None

    def of(self, loss: torch.Tensor, mean: torch.Tensor, shares: ItemShares) -> Any:
        """The factor for this batch, given the Trainer's loss and the samples' ``mean``."""
        if self._by_items is None:
            self._by_items = self._look(loss.detach(), mean.detach(), shares)
        return shares.by_batch if self._by_items is False else shares.by_items

    def _look(self, loss: torch.Tensor, mean: torch.Tensor, shares: ItemShares) -> bool | None:
        """Compare once, which waits for the device; None if this loss cannot tell."""
        got = float(loss)
        by_items, by_batch = float(mean * shares.by_items), float(mean * shares.by_batch)
        if not math.isfinite(got):
            return None
        exact = loss.dtype in (torch.float32, torch.float64)
        room = (1e-3 if exact else 2e-2) * max(abs(got), 1e-3)
        if shares.distance(loss, mean) > room and not self._trusted:
            raise RuntimeError(
                f"compute_loss() got a loss of {got:.6g} for the first batch, but the losses of its "
                f"samples give {by_items:.6g}. Expected a loss that is a mean over the samples or their "
                "tokens, as transformers' own are. Possible causes: the model shifts the labels in "
                "another way (shifted by one position and not shifted were both tried), weights its "
                f"classes, or adds an auxiliary loss. {WAY_OUT}; any other term of the loss (a "
                "router's auxiliary loss, for instance) is then left unscaled."
            )
        if by_items == by_batch and shares.accumulates:  # resumed at an epoch's last, single batch
            return None
        return abs(got - by_items) <= abs(got - by_batch)


class UnreducedLoss:
    """Stands in for the user's ``compute_loss_func``, which returns one loss per sample."""

    def __init__(self, function: Callable[..., Any] | None, share: Any) -> None:
        self._function = function
        self._share = share
        self.per_sample: PerSample | None = None

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Call the function, keep its per-sample losses, and reduce."""
        assert self._function is not None
        result = self._function(outputs, labels, num_items_in_batch=num_items_in_batch)
        if isinstance(result, torch.Tensor) and result.dim() == 1:
            result = PerSample(result, result.detach())
        if not isinstance(result, PerSample):
            scalar: torch.Tensor = result
            return scalar
        self.per_sample = result
        loss: torch.Tensor = result.losses.mean() * self._share
        return loss
