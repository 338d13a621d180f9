"""Semantic segmentation, with auxiliary heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_indices, check_shape, check_tensor
from infobatch.scoring.per_label import add_up_cross_entropy, sizes_of_counted
from infobatch.scoring.reduction import own_means, shares, with_sizes


def segmentation(
    logits: torch.Tensor,
    masks: torch.Tensor,
    *,
    ignore_index: int = 255,
    weight: torch.Tensor | None = None,
    auxiliary: Sequence[tuple[torch.Tensor, float]] = (),
) -> PerSample:
    """Pixel-wise cross-entropy: a batch-level mean as the loss, a per-image mean as the score.

    ``losses.mean()`` is ``F.cross_entropy(logits, masks, weight, ignore_index=…)``, a mean over all
    counted pixels of the batch (with class weights torch's weighted mean), plus factor times the same
    for each auxiliary head. The score is the paper's (A.1): the heads' losses with the same factors,
    each a mean over the image's own counted pixels.

    An image without a counted pixel has loss 0 and score NaN: it keeps its old score. A batch with
    only such images has loss 0, whereas torch returns NaN.

    Args:
        logits: (B, C, H, W), at the masks' size.
        masks: (B, H, W), class indices of any integer type.
        ignore_index: the label of pixels that count neither in the loss nor in the score.
        weight: (C,), one per class; part of the loss and of the score.
        auxiliary: pairs ``(logits, factor)``, one per head.

    Returns:
        One loss and one score per image, (B,) each.

    Raises:
        ValueError: if the masks are not of the logits' size, for any of the heads.
        TypeError: if the masks are not integers, or ``auxiliary`` does not hold pairs.

    >>> logits, masks = torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 255)
    >>> masks[0, 0] = 1
    >>> segmentation(logits, masks, auxiliary=[(logits, 0.4)]).scores
    tensor([1.5381,    nan])
    """
    call = "segmentation()"
    heads = [("logits", logits, 1.0), *_check_auxiliary(call, auxiliary)]
    losses, scores, parts = [], [], []
    for name, head, factor in heads:
        check_tensor(call, name, head, "(B, C, H, W)", least_dims=4)
        places = (head.shape[0], *head.shape[2:])
        remedy = (
            "Squeeze the masks to that shape, or bring the logits to the masks' size with "
            "torch.nn.functional.interpolate."
        )
        check_shape(call, f"masks beside {name} of {tuple(head.shape)}", masks, places, remedy)
        masks = check_indices(call, "masks", masks, "Pass class indices: masks.long().")
        counted = add_up_cross_entropy(
            call, head, masks, weight=weight, label_smoothing=0.0, ignore_index=ignore_index
        )
        losses.append(factor * shares(counted.sums, counted.divisors.sum()))
        scores.append(factor * own_means(counted.sums, counted.counts))
        parts.append((factor, counted))

    def squares() -> torch.Tensor:
        return torch.stack([factor**2 * sizes_of_counted(part) for factor, part in parts]).sum(0)

    pixels = parts[0][1].divisors  # the same for every head
    return with_sizes(torch.stack(losses).sum(0), torch.stack(scores).sum(0), squares, pixels)


def _check_auxiliary(
    call: str, auxiliary: Sequence[tuple[torch.Tensor, float]]
) -> list[tuple[str, torch.Tensor, float]]:
    heads = []
    for number, pair in enumerate(auxiliary):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"{call} got {type(pair).__name__} as auxiliary[{number}], expected a pair (logits, "
                "factor), for instance auxiliary=[(auxiliary_logits, 0.4)]."
            )
        heads.append((f"auxiliary[{number}]", pair[0], pair[1]))
    return heads
