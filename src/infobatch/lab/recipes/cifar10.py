"""Image classification on CIFAR-10, cropped and flipped at random.

All 50,000 images for 12 epochs by a small ResNet: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from infobatch.lab.datasets.readers import cifar10
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.options import number_from, one_of
from infobatch.lab.recipes.augmentation import shifted_and_flipped
from infobatch.lab.recipes.image_classification import ImageClassification
from infobatch.lab.recipes.image_networks import NETWORKS
from infobatch.lab.smoke import SMOKE_TRAIN

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PADDING = 4
NUM_TRAIN = 50_000
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
    """A ResNet of 308,650 parameters, SGD by default.

    Options:
        images: how many of the training images to use, starting from the first.
        network: ``resnet``, ``small_resnet`` of 78,042 parameters, or ``vit`` of 311,146.
    """

    source: str = "folder"
    num_images: int = field(default=NUM_TRAIN, metadata={"option": "images"})
    epochs: int = 12
    network: str = "resnet"

    evaluate_every = 4
    margin = 0.5
    class_names = CLASS_NAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("network", self.network, tuple(NETWORKS))
        number_from("images", self.num_images, 1, NUM_TRAIN)
        number_from("epochs", self.epochs, 1)
        self.images = cifar10(self.folder, self.source)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """50,000 training images or as many as requested, 10,000 test images, as uint8."""
        train_x, train_y = self.images.train(SMOKE_TRAIN if self.smoke else self.num_images)
        test_x, test_y = self.images.test()
        tensors = map(torch.from_numpy, (train_x, train_y, test_x, test_y))
        train_images, train_labels, test_images, test_labels = tensors
        return Tensors(train_images, train_labels), Tensors(test_images, test_labels)

    def model(self) -> nn.Module:
        """The chosen network."""
        return NETWORKS[self.network]().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

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
    """Convert pixels of 0 to 255 to floats with mean 0 and standard deviation 1 per colour."""
    mean = torch.tensor(MEAN, device=images.device).view(3, 1, 1)
    deviation = torch.tensor(DEVIATION, device=images.device).view(3, 1, 1)
    floats = images.float() / 255
    return ((floats - mean) / deviation).contiguous(memory_format=torch.channels_last)
