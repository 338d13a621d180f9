"""Contrastive pairs, as in CLIP: the loss of each pair against the rest of the batch."""

from __future__ import annotations

import torch
from torch.nn import functional

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_shape, check_tensor
from infobatch.scoring.reduction import at_least_float32, missing_squares, with_sizes

_CLIP_TEMPERATURE = 0.07


def contrastive(
    image_embeddings: torch.Tensor,
    text_embeddings: torch.Tensor,
    *,
    temperature: torch.Tensor | float | None = None,
    logit_scale: torch.Tensor | float | None = None,
    normalise: bool = True,
) -> PerSample:
    """Symmetric InfoNCE by pair; ``losses.mean()`` is CLIP's loss.

    Loss i is the mean of image i's cross-entropy among the texts and text i's among the images.

    **The negatives are the batch.** The score of a pair depends on the rest of the batch, as does
    the loss itself, and pruning changes the negatives: easy pairs are rarer among them, so the task
    differs from that on the full data, and the expected gradient is not exactly that of the full
    data. Compare with random pruning before you rely on it, and keep batches large.

    Args:
        image_embeddings, text_embeddings: (B, D); row i of one belongs to row i of the other.
        temperature: the similarities are divided by it; 0.07, where CLIP starts, by default.
        logit_scale: the factor itself instead of the temperature (CLIP's
            ``model.logit_scale.exp()``, after the exponential). Gradients flow to it.
        normalise: scale the embeddings to length 1; has no effect if they already are.

    Returns:
        One loss and one score per pair, (B,) each: the loss, as both.

    Raises:
        ValueError: if the embeddings are not of one shape, or both temperature and scale are given.
        TypeError: if the embeddings are not tensors of floating point numbers.

    >>> pairs = torch.eye(3)
    >>> contrastive(pairs, pairs, temperature=1.0).losses
    tensor([0.5514, 0.5514, 0.5514])
    """
    call = "contrastive()"
    check_tensor(call, "image_embeddings", image_embeddings, "(B, D)", least_dims=2)
    remedy = "Pass one embedding per pair, both of the same width, in the same order."
    shape = (image_embeddings.shape[0], image_embeddings.shape[-1])
    check_shape(call, "image_embeddings", image_embeddings, shape, remedy)
    check_shape(call, "text_embeddings", text_embeddings, shape, remedy)
    if temperature is not None and logit_scale is not None:
        raise ValueError(
            f"{call} got both temperature and logit_scale, expected one: logit_scale = 1 / temperature."
        )
    images = at_least_float32(image_embeddings)
    texts = text_embeddings.to(images.dtype)
    if normalise:
        images, texts = functional.normalize(images, dim=-1), functional.normalize(texts, dim=-1)
    similarities = at_least_float32(images @ texts.T)  # autocast halves a product
    if logit_scale is not None:
        logits = similarities * logit_scale
    else:
        logits = similarities / (_CLIP_TEMPERATURE if temperature is None else temperature)
    pairs = torch.arange(logits.shape[0], device=logits.device)
    by_image = functional.cross_entropy(logits, pairs, reduction="none")
    by_text = functional.cross_entropy(logits.T, pairs, reduction="none")
    losses = (by_image + by_text) / 2
    return with_sizes(
        losses, losses.detach(), lambda: missing_squares(by_image) + missing_squares(by_text)
    )
