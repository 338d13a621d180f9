"""A fast network for CIFAR-10 in the style of airbench.

After Keller Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024): a frozen layer that
whitens patches of 2 × 2 pixels, then three groups of two convolutions, and logits that are scaled down.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("float32", "bfloat16")  # of the convolutions
PATCH = 2  # pixels on a side
SCALE = 1 / 9  # of the logits
_EPSILON = 5e-4  # bounds the factor by which a rare direction is stretched


class ConvolutionGroup(nn.Module):
    """Convolution, pooling to half the size, convolution; each normalised and activated."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = _convolution(outputs, outputs)
        self.second_norm = nn.BatchNorm2d(outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H // 2, W // 2)."""
        pooled = functional.max_pool2d(self.first(features), 2)
        halfway = functional.gelu(self.first_norm(pooled))
        return functional.gelu(self.second_norm(self.second(halfway)))


class Airbench(nn.Module):
    """Whitened patches, three groups of the given widths, and a linear head.

    Nothing before the first group is trained, so no gradient is computed there. With ``precision``
    ``"bfloat16"`` the convolutions are computed in it, and the weights, the head and the logits
    remain float32.

    Args:
        images: (N, 3, H, W), standardised, of which the whitening layer is computed.
        widths: the channels of each group.
        precision: one of ``PRECISIONS``.
    """

    def __init__(
        self, images: torch.Tensor, widths: tuple[int, int, int], precision: str = "float32"
    ) -> None:
        super().__init__()
        self.precision = precision
        self.register_buffer("filters", whitening_filters(images))
        self.filters: torch.Tensor
        inputs = (len(self.filters), *widths)
        self.groups = nn.Sequential(*map(ConvolutionGroup, inputs, widths))
        self.head = nn.Linear(widths[-1], 10, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, 32, 32) to (B, 10)."""
        low = self.precision == "bfloat16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=low):
            features = self.groups(functional.gelu(functional.conv2d(images, self.filters)))
            features = functional.max_pool2d(features, features.shape[2:])
        logits: torch.Tensor = self.head(features.flatten(1).float())
        return SCALE * logits


def whitening_filters(images: torch.Tensor) -> torch.Tensor:
    """Filters whose outputs on patches of these images are uncorrelated, each with its negative.

    There are two for each of the 12 numbers of a patch: the eigenvectors of the covariance of patches,
    divided by the root of their eigenvalues. They lie as the first convolution's input is laid out.
    """
    patches = functional.unfold(images.double(), PATCH).transpose(1, 2).flatten(0, 1)
    eigenvalues, eigenvectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (eigenvectors / (eigenvalues + _EPSILON).sqrt()).T.flip(0)
    filters = filters.reshape(len(filters), images.shape[1], PATCH, PATCH).float()
    return torch.cat([filters, -filters]).contiguous(memory_format=torch.channels_last)


def parse_widths(text: str) -> tuple[int, int, int]:
    """Read the widths of the three groups.

    >>> parse_widths("64/128/128")
    (64, 128, 128)
    """
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(
            f"widths={text!r}, expected three numbers of channels, such as 64/128/128."
        )
    first, second, third = map(int, parts)
    return first, second, third


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """A 3 × 3 convolution that starts by handing on its inputs in its first channels."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:inputs])
    return layer
