"""Object detection: a per-image sum of the parts of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_shape, check_tensor
from infobatch.scoring.reduction import at_least_float32, own_means, shares, with_sizes
from infobatch.transfer import send

Parts = Mapping[str, torch.Tensor]


def detection(
    parts: Parts | Sequence[Parts],
    weights: Mapping[str, float] | None = None,
    *,
    counts: torch.Tensor | None = None,
) -> PerSample:
    """Add up the parts of a detector's loss, image by image, with their gradients.

    Without ``counts``, ``losses.mean()`` is the mean over the images of the weighted sum of parts,
    and that sum is the image's score.

    Many detectors divide by a number that belongs to the whole batch: all matched boxes, or
    ultralytics' sum of target scores. In that case, pass the parts as undivided sums over each
    image, and as ``counts`` each image's contribution to that number: ``losses.mean()`` is the sum
    of all parts divided by the sum of the counts, or by 1 if that is less, as in those detectors.
    In a pruned epoch, ``update`` weights that sum as well. The score divides by the image's own count, or
    by 1, so it does not depend on the other images.

    An image without objects is one with parts of 0 (its background loss, if the detector has one, is
    its score). A part that is the mean over no boxes is NaN and stays NaN: write it as a sum divided
    by ``max(count, 1)``.

    The size of the gradient, ``extras["gradient"]``, is taken to grow with the root of the (undivided)
    sum: the detector's outputs are not known here.

    Args:
        parts: a tensor (B,) by name; or for each image a mapping of scalars, as torchvision's
            detectors return them when they are called image by image. A part that an image lacks
            counts as 0.
        weights: factors by name; a part that is not named has factor 1.
        counts: (B,), each image's share of the number that the batch loss is divided by.

    Returns:
        One loss and one score per image, (B,) each.

    Raises:
        ValueError: if there are no parts, a part is not one loss per image, or ``weights`` names a
            part that is not there.
        TypeError: if the parts are neither a mapping nor a list of mappings.

    >>> parts = {"box": torch.tensor([1.0, 0.0]), "cls": torch.tensor([0.5, 0.25])}
    >>> detection(parts, weights={"box": 2.0}).losses
    tensor([2.5000, 0.2500])
    """
    call = "detection()"
    by_name = _by_name(call, parts)
    unknown = set(weights or ()) - set(by_name)
    if unknown:
        raise ValueError(
            f"{call} got weights for {sorted(unknown)}, expected names of the parts: {sorted(by_name)}."
        )
    weighted: list[torch.Tensor] = []
    for name, part in by_name.items():
        _check_part(call, name, part)
        size = weighted[0].shape[0] if weighted else part.shape[0]
        check_shape(
            call, f"part {name!r}", part, (size,), "Reduce each part to one loss per image."
        )
        factor = 1.0 if weights is None else weights.get(name, 1.0)
        weighted.append(factor * at_least_float32(part))
    losses = torch.stack(weighted).sum(0)
    # What a detector returns is not known here, but no smooth loss is steeper than its root allows.
    squares = partial(losses.clamp_min, 0)
    if counts is None:
        return with_sizes(losses, losses.detach(), squares)
    check_shape(call, "counts", counts, tuple(losses.shape), "Pass one number per image.")
    counts = send(counts.detach(), losses.device, losses.dtype)
    total = counts.sum()
    divided = shares(losses, total.clamp_min(1))
    scores = own_means(losses, counts.clamp_min(1))
    # A batch that is divided by 1 whatever its counts has no divisor to weight.
    return with_sizes(divided, scores, squares, torch.where(total > 1, counts, 1))


def _by_name(call: str, parts: Parts | Sequence[Parts]) -> dict[str, torch.Tensor]:
    if isinstance(parts, Mapping):
        by_name = dict(parts)
    elif isinstance(parts, list | tuple) and all(isinstance(image, Mapping) for image in parts):
        names = list(dict.fromkeys(name for image in parts for name in image))
        by_name = {name: _stack(call, name, parts) for name in names}
    else:
        raise TypeError(
            f"{call} got {type(parts).__name__} as parts, expected a mapping of names to per-image "
            "losses (B,), or a list with a mapping of names to scalars for each image."
        )
    if not by_name:
        raise ValueError(f"{call} got no parts, expected at least one loss. Pass the loss dict.")
    return by_name


def _stack(call: str, name: str, parts: Sequence[Parts]) -> torch.Tensor:
    present = next(image[name] for image in parts if name in image)
    zero = torch.zeros_like(torch.as_tensor(present))
    column = [torch.as_tensor(image.get(name, zero)) for image in parts]
    for number, part in enumerate(column):
        if part.dim():
            raise ValueError(
                f"{call} got part {name!r} of shape {tuple(part.shape)} for image {number}, expected a "
                "scalar: call the model image by image, and sum or average within the image."
            )
    return torch.stack(column)


def _check_part(call: str, name: str, part: torch.Tensor) -> None:
    if isinstance(part, torch.Tensor) and not part.dim():
        raise ValueError(
            f"{call} got part {name!r} as a scalar of the whole batch, expected one loss per image: "
            '(B,). Compute it with reduction="none" and sum by image, or call the model image by '
            "image and pass the list of its loss dicts. If it is only known for the batch, use scalar()."
        )
    check_tensor(call, f"part {name!r}", part, "(B,)", least_dims=1)
