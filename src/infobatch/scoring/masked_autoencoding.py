"""Masked autoencoders: the error of the patches that were hidden."""

from __future__ import annotations

import torch

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_shape, check_tensor
from infobatch.scoring.reduction import at_least_float32, own_means, shares, with_sizes


def masked_autoencoding(
    predictions: torch.Tensor,
    patches: torch.Tensor,
    mask: torch.Tensor,
    *,
    normalise: bool = False,
) -> PerSample:
    """Squared error of the masked patches; ``losses.mean()`` is the MAE's loss (He et al., 2022).

    The score is the mean over the image's own masked patches. A sample without masked patches has
    loss 0 and score NaN. The mask is drawn again at each visit, so a score is as noisy as a single
    draw.

    Args:
        predictions: (B, L, D), the decoder's output.
        patches: (B, L, D), the image in patches (``model.patchify(pixels)`` in transformers).
        mask: (B, L), 1 or True where a patch was hidden.
        normalise: compare with each patch shifted to mean 0 and scaled to variance 1
            (``norm_pix_loss``).

    Returns:
        One loss and one score per image, (B,) each.

    Raises:
        ValueError: if the shapes of predictions, patches and mask do not fit.
        TypeError: if the predictions are not floating point numbers.

    >>> patches = torch.ones(2, 4, 3)
    >>> mask = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]])
    >>> masked_autoencoding(torch.zeros(2, 4, 3), patches, mask).scores
    tensor([1., nan])
    """
    call = "masked_autoencoding()"
    check_tensor(call, "predictions", predictions, "(B, L, D)", least_dims=3)
    shape = tuple(predictions.shape)
    check_shape(call, "patches", patches, shape, "Cut the images into patches: model.patchify(…).")
    check_shape(call, "mask", mask, shape[:2], "Pass one number per patch, 1 where it was hidden.")
    predictions = at_least_float32(predictions)
    patches = patches.to(predictions.dtype)
    if normalise:
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        patches = (patches - mean) / (variance + 1e-6).sqrt()
    errors = (predictions - patches).square().mean(-1)
    hidden = mask.to(errors.dtype)
    sums, counts = (errors * hidden).sum(1), hidden.sum(1)
    return with_sizes(
        shares(sums, counts.sum()),
        own_means(sums, counts),
        lambda: torch.where(counts > 0, sums, torch.nan),
        counts,
    )
