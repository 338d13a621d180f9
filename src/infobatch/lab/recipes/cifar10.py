"""Image classification on CIFAR-10 with a small ResNet, cropped and flipped at random.

All 50,000 images for 12 epochs: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from infobatch.lab.datasets.readers import cifar10
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.recipes.augmentation import shifted_and_flipped
from infobatch.lab.recipes.image_classification import ImageClassification
from infobatch.lab.smoke import SMOKE_TRAIN

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PADDING = 4
CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


@dataclass
class Recipe(ImageClassification):
    """A ResNet of 308,650 parameters, SGD by default."""

    source: str = "folder"

    epochs = 12
    margin = 0.5
    class_names = CLASS_NAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.images = cifar10(self.folder, self.source)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """50,000 images to train, 10,000 to test, as uint8."""
        train_x, train_y = self.images.train(SMOKE_TRAIN if self.smoke else 50_000)
        test_x, test_y = self.images.test()
        tensors = map(torch.from_numpy, (train_x, train_y, test_x, test_y))
        train_images, train_labels, test_images, test_labels = tensors
        return Tensors(train_images, train_labels), Tensors(test_images, test_labels)

    def model(self) -> nn.Module:
        """A stem of stride 2 and three residual blocks."""
        return small_resnet((32, 64, 128)).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Standardise the colours."""
        return standardised(images)

    def augment(self, images: torch.Tensor) -> torch.Tensor:
        """Shift and flip."""
        return shifted_and_flipped(images, PADDING)

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as red, green and blue."""
        return data[index][0].permute(1, 2, 0).numpy()


def standardised(images: torch.Tensor) -> torch.Tensor:
    """Pixels of 0 to 255 as floats of mean 0 and deviation 1 by colour."""
    mean = torch.tensor(MEAN, device=images.device).view(3, 1, 1)
    deviation = torch.tensor(DEVIATION, device=images.device).view(3, 1, 1)
    floats = images.float() / 255
    return ((floats - mean) / deviation).contiguous(memory_format=torch.channels_last)


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = convolution(outputs, outputs, 3, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        through = self.second(functional.relu(self.first(features)))
        return functional.relu(through + self.shortcut(features))


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    """A convolution and its batch normalisation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def small_resnet(widths: tuple[int, ...], num_classes: int = 10) -> nn.Sequential:
    """A stem of stride 2 and one block a width, each after the first at half the size."""
    blocks = [
        ResidualBlock(widths[max(number - 1, 0)], width, 2 if number else 1)
        for number, width in enumerate(widths)
    ]
    return nn.Sequential(
        convolution(3, widths[0], 3, 2),
        nn.ReLU(inplace=True),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], num_classes),
    )
