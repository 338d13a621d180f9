"""Cross-entropy with one label per sample, pixel or token, added up by sample."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from infobatch.per_sample import Sizes
from infobatch.scoring.checks import check_indices, check_shape
from infobatch.scoring.logit_gradients import squared_norms
from infobatch.scoring.reduction import at_least_float32, by_sample, missing_squares
from infobatch.transfer import send


class Counted(NamedTuple):
    """Per sample: the sum of losses, how many labels count, the divisor of torch's mean, and ‖gradient‖²."""

    sums: torch.Tensor
    counts: torch.Tensor
    divisors: torch.Tensor
    squares: Sizes


def add_up_cross_entropy(
    call: str,
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    weight: torch.Tensor | None,
    label_smoothing: float,
    ignore_index: int,
) -> Counted:
    """Cross-entropy of logits (B, C, …) with class indices (B, …)."""
    targets = check_indices(call, "targets", targets, "Pass class indices: targets.long().")
    logits = at_least_float32(logits)
    weight = check_class_weight(call, weight, logits)
    losses = functional.cross_entropy(
        logits,
        targets,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    counts = by_sample(targets != ignore_index)
    number = counts.sum(1)
    losses = by_sample(losses)
    sums = losses.sum(1)
    weights = None
    if weight is not None:
        weights = weight[torch.where(counts, by_sample(targets), 0)] * counts
    divisors = number if weights is None else weights.sum(1)

    def squares() -> torch.Tensor:
        if label_smoothing or logits.dim() == 2:
            exact = squared_norms(logits, targets, weight=weight, label_smoothing=label_smoothing)
            return torch.where(counts, exact, 0).sum(1)
        if weights is None:
            return missing_squares(losses).sum(1)
        # A second softmax over many pixels would cost more than the difference is worth.
        plain = losses / torch.where(weights > 0, weights, 1)
        return (weights.square() * missing_squares(plain)).sum(1)

    return Counted(sums, number, divisors, squares)


def sizes_of_counted(counted: Counted) -> torch.Tensor:
    """The squares of the samples' gradients; NaN ("keeps its old size") where no label counts."""
    return torch.where(counted.counts > 0, counted.squares(), torch.nan)


def check_class_weight(
    call: str, weight: torch.Tensor | None, logits: torch.Tensor
) -> torch.Tensor | None:
    """Return the class weights with the logits' type and device; raise if there is not one per class."""
    if weight is None:
        return None
    check_shape(call, "weight", weight, (logits.shape[1],), "Pass one weight per class.")
    return send(weight, logits.device, logits.dtype)
