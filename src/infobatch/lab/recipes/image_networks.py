"""Small networks for images; for colour images of 32 × 32 pixels, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = convolution(outputs, outputs, 3, 1)
        unchanged = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if unchanged else convolution(inputs, outputs, 1, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        through = self.second(functional.relu(self.first(features)))
        return functional.relu(through + self.shortcut(features))


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    """A convolution and its batch normalisation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def resnet(widths: tuple[int, ...], colours: int = 3, num_classes: int = 10) -> nn.Sequential:
    """A stem with stride 2 and one block per width, each after the first at half the size."""
    blocks = [
        ResidualBlock(widths[max(number - 1, 0)], width, 2 if number else 1)
        for number, width in enumerate(widths)
    ]
    return nn.Sequential(
        convolution(colours, widths[0], 3, 2),
        nn.ReLU(inplace=True),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], num_classes),
    )


class VisionTransformer(nn.Module):
    """Patches of 4 × 4 pixels as 64 tokens, their mean classified."""

    def __init__(self, width: int = 96, depth: int = 4, heads: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, 32, 32) to (B, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.layers(tokens).mean(1)))
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": partial(resnet, (32, 64, 128)),
    "small_resnet": partial(resnet, (16, 32, 64)),
    "vit": VisionTransformer,
}
# The same networks at a quarter of their widths.
PROXIES: dict[str, Callable[[], nn.Module]] = {
    "resnet": partial(resnet, (8, 16, 32)),
    "small_resnet": partial(resnet, (4, 8, 16)),
    "vit": partial(VisionTransformer, 24),
}
