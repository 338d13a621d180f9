"""The gradient of a cross-entropy with respect to the logits, in closed form and without a graph.

With label probabilities t, class weights w and label smoothing ε, the loss of a label is −Σ a_c log p_c
with a_c = w_c ((1 − ε) t_c + ε / C), for class indices (t is 1 at the label) as for soft targets. Its
gradient with respect to the logits is (Σ a) p − a: without weights, softmax minus target.
"""

from __future__ import annotations

import torch

from infobatch.scoring.reduction import at_least_float32, by_sample
from infobatch.transfer import send


@torch.no_grad()
def squared_norms(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    weight: torch.Tensor | None,
    label_smoothing: float,
) -> torch.Tensor:
    """‖gradient‖² of each label's loss, one row per sample; class indices may be out of range.

    Args:
        logits: (B, C, …).
        targets: class indices (B, …), where the result for an invalid class is arbitrary; or
            probabilities in the shape of the logits.
        weight: (C,), one per class.
        label_smoothing: as in torch.
    """
    p = at_least_float32(logits.detach()).softmax(1)
    along_classes = (-1, *[1] * (logits.dim() - 2))
    if targets.shape != logits.shape:
        classes = torch.arange(logits.shape[1], device=logits.device).view(along_classes)
        targets = classes == targets.unsqueeze(1)
    wanted = targets.to(p.dtype) * (1 - label_smoothing) + label_smoothing / logits.shape[1]
    if weight is not None:
        wanted = wanted * send(weight, p.device, p.dtype).view(along_classes)
    return by_sample((p * wanted.sum(1, keepdim=True) - wanted).square().sum(1))


def root_means(squares: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each sample's root mean square over the labels that count; NaN if none does."""
    means = torch.where(counts, squares, 0).sum(1) / counts.sum(1).clamp_min(1)
    return torch.where(counts.any(1), means.sqrt(), torch.nan)
