"""Cross-entropy with one label per sample, pixel or token, added up by sample."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from infobatch.scoring.checks import check_indices, check_shape
from infobatch.scoring.reduction import at_least_float32, by_sample
from infobatch.transfer import send


class Counted(NamedTuple):
    """Per sample: the sum of losses, how many labels count, and the divisor of torch's mean."""

    sums: torch.Tensor
    counts: torch.Tensor
    divisors: torch.Tensor


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
    if weight is None:
        return Counted(by_sample(losses).sum(1), number, number)
    classes = by_sample(targets)
    weights = weight[torch.where(counts, classes, 0)] * counts
    return Counted(by_sample(losses).sum(1), number, weights.sum(1))


def check_class_weight(
    call: str, weight: torch.Tensor | None, logits: torch.Tensor
) -> torch.Tensor | None:
    """Return the class weights with the logits' type and device; raise if there is not one per class."""
    if weight is None:
        return None
    check_shape(call, "weight", weight, (logits.shape[1],), "Pass one weight per class.")
    return send(weight, logits.device, logits.dtype)
