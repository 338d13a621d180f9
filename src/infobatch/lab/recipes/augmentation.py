"""Shifts and flips of images, a whole batch at once."""

from __future__ import annotations

import torch
from torch.nn import functional


def shifted_and_flipped(images: torch.Tensor, most: int, *, fill: float = 0.0) -> torch.Tensor:
    """Shift each image by up to ``most`` pixels and flip every second one; pad with ``fill``."""
    count, _, height, width = images.shape
    padded = functional.pad(images, [most] * 4, value=fill)
    top, left = torch.randint(2 * most + 1, (2, count, 1), device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    mirrored = torch.rand(count, 1, device=images.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(count, device=images.device).view(-1, 1, 1)
    return padded[image, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def shifted_and_alternately_flipped(images: torch.Tensor, most: int, epoch: int) -> torch.Tensor:
    """Shift each image by up to ``most`` pixels, with a reflected border; flip it every second epoch.

    Compared with random flips, no image is seen twice from the same side before it is seen from the
    other. Half of the images are flipped in even epochs and half in odd ones, by the parity of the
    sum of their pixels, which are integers (B, C, H, W).
    """
    count, _, height, width = images.shape
    top, left = torch.randint(-most, most + 1, (2, count, 1), device=images.device)
    rows = _reflected(top + torch.arange(height, device=images.device), height)
    columns = _reflected(left + torch.arange(width, device=images.device), width)
    mirrored = (images.flatten(1).sum(1, keepdim=True) + epoch) % 2 == 1
    columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(count, device=images.device).view(-1, 1, 1)
    return images[image, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def _reflected(places: torch.Tensor, length: int) -> torch.Tensor:
    """Places beyond either end, mirrored at the first or last pixel."""
    return length - 1 - (length - 1 - places.abs()).abs()
