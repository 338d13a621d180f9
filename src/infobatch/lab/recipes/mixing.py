"""MixUp and CutMix of a batch, with a separate partner and weight for each image."""

from __future__ import annotations

from typing import NamedTuple

import torch

MIXES = ("none", "mixup", "cutmix")
MIXUP_ALPHA = 0.2
CUTMIX_ALPHA = 1.0


class Mixed(NamedTuple):
    """A mixed batch: image k is ``lam[k]`` of sample k, and the rest is ``partners[k]``."""

    images: torch.Tensor
    partners: torch.Tensor
    lam: torch.Tensor


def mix_images(kind: str, images: torch.Tensor) -> Mixed:
    """Mix a batch (B, C, H, W) with itself in another order."""
    return mixup(images) if kind == "mixup" else cutmix(images)


def mixup(images: torch.Tensor, alpha: float = MIXUP_ALPHA) -> Mixed:
    """Add two images with weights lam and 1 − lam, lam ~ Beta(alpha, alpha)."""
    partners = torch.randperm(len(images), device=images.device)
    lam = _beta(images, alpha)
    share = lam.view(-1, 1, 1, 1)
    return Mixed(share * images + (1 - share) * images[partners], partners, lam)


def cutmix(images: torch.Tensor, alpha: float = CUTMIX_ALPHA) -> Mixed:
    """Paste a rectangle of the partner; lam is the share of the area that the image kept."""
    count, _, height, width = images.shape
    partners = torch.randperm(count, device=images.device)
    side = (1 - _beta(images, alpha)).sqrt()  # of the rectangle, as a share of the image's
    inside = _stretch(side, height).unsqueeze(2) & _stretch(side, width).unsqueeze(1)
    # The border cuts off part of the rectangle, so the weight is computed from the pixels.
    lam = 1 - inside.float().mean((1, 2))
    return Mixed(torch.where(inside.unsqueeze(1), images[partners], images), partners, lam)


def _stretch(side: torch.Tensor, length: int) -> torch.Tensor:
    """Which of ``length`` pixels lie in a stretch around a random centre, by image: (B, length)."""
    centre = torch.rand_like(side) * length
    pixels = torch.arange(length, device=side.device) + 0.5
    return (pixels - centre.unsqueeze(1)).abs() < (side * length / 2).unsqueeze(1)


def _beta(images: torch.Tensor, alpha: float) -> torch.Tensor:
    concentration = torch.full((len(images),), alpha, device=images.device)
    return torch.distributions.Beta(concentration, concentration).sample()
