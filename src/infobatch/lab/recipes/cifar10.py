"""Image classification on CIFAR-10, cropped and flipped at random.

All 50,000 images for 12 epochs by a small ResNet: minutes on two cores. ``network=airbench`` is the
serious one, with settings of its own: longer, and far more accurate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset

from infobatch.lab.datasets.readers import cifar10
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.options import number_from, one_of
from infobatch.lab.recipes.airbench import PRECISIONS, Airbench, parse_widths
from infobatch.lab.recipes.augmentation import (
    shifted_and_alternately_flipped,
    shifted_and_flipped,
)
from infobatch.lab.recipes.image_classification import ImageClassification
from infobatch.lab.recipes.image_networks import NETWORKS, PROXIES
from infobatch.lab.smoke import SMOKE_TRAIN

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PADDING = 4
NUM_TRAIN = 50_000
WHITENED = 5_000  # images from which the whitening layer of airbench is computed
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


class Setting(NamedTuple):
    """What suits a network."""

    epochs: int = 12
    batch_size: int = 128
    label_smoothing: float = 0.0
    most_shift: int = PADDING


AIRBENCH = "airbench"
SETTINGS = dict.fromkeys(NETWORKS, Setting()) | {
    AIRBENCH: Setting(epochs=16, batch_size=500, label_smoothing=0.2, most_shift=2)
}
AIRBENCH_RATE = 1.0  # with SGD


@dataclass
class Recipe(ImageClassification):
    """A ResNet of 308,650 parameters, SGD by default.

    Options:
        images: how many of the training images to use, starting from the first.
        network: ``resnet``, ``small_resnet`` of 78,042 parameters, ``vit`` of 311,146, or ``airbench``
            of 569,344, which also has its own epochs, batch size, learning rate, label smoothing and
            augmentation, and is evaluated only at the end.
        epochs, batch_size: 0 for the network's own.
        widths: of airbench's three groups of convolutions.
        precision: of airbench's convolutions, ``float32`` or ``bfloat16``.
    """

    source: str = "folder"
    num_images: int = field(default=NUM_TRAIN, metadata={"option": "images"})
    epochs: int = 0
    network: str = "resnet"
    batch_size: int = 0
    widths: str = "64/128/128"
    precision: str = "float32"

    margin = 0.5
    class_names = CLASS_NAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("network", self.network, tuple(SETTINGS))
        one_of("precision", self.precision, PRECISIONS)
        number_from("images", self.num_images, 1, NUM_TRAIN)
        number_from("epochs", self.epochs, 0)
        number_from("batch_size", self.batch_size, 0)
        if self.smoke:
            self.num_images = SMOKE_TRAIN
        self.setting = SETTINGS[self.network]
        self.epochs = self.epochs or self.setting.epochs
        self.batch_size = self.batch_size or self.setting.batch_size
        self.label_smoothing = self.setting.label_smoothing
        self.group_widths = parse_widths(self.widths)
        self.epoch = 0
        self.images = cifar10(self.folder, self.source)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """50,000 training images or as many as requested, 10,000 test images, as uint8."""
        train_x, train_y = self.images.train(self.num_images)
        test_x, test_y = self.images.test()
        tensors = map(torch.from_numpy, (train_x, train_y, test_x, test_y))
        train_images, train_labels, test_images, test_labels = tensors
        return Tensors(train_images, train_labels), Tensors(test_images, test_labels)

    @property
    def learning_rate(self) -> float:
        """The learning rate that suits the optimizer and the network."""
        if self.is_airbench and self.optimizer_name == "sgd":
            return AIRBENCH_RATE
        return super().learning_rate

    @property
    def evaluate_every(self) -> int:
        """Every fourth epoch; airbench, which is compared as it ends, only then."""
        return self.epochs if self.is_airbench else 4

    @property
    def is_airbench(self) -> bool:
        """Whether the network is the one with settings of its own."""
        return self.network == AIRBENCH

    def begin_epoch(self, epoch: int) -> None:
        """Flip the other half of the images, if flips alternate."""
        self.epoch = epoch

    def model(self) -> nn.Module:
        """The chosen network."""
        model = self._airbench(1) if self.is_airbench else NETWORKS[self.network]()
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def proxy(self) -> nn.Module:
        """The same network at a quarter of its widths."""
        model = self._airbench(4) if self.is_airbench else PROXIES[self.network]()
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _airbench(self, divisor: int) -> Airbench:
        """The network, of widths divided by that, with a whitening layer for the first training images."""
        images, _ = self.images.train(min(WHITENED, self.num_images))
        first, second, third = (max(1, width // divisor) for width in self.group_widths)
        whitened = standardised(torch.from_numpy(images))
        return Airbench(whitened, (first, second, third), self.precision)

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Standardise the colours."""
        return standardised(images)

    def augment(self, images: torch.Tensor) -> torch.Tensor:
        """Shift and flip."""
        most = self.setting.most_shift
        if self.is_airbench:
            return shifted_and_alternately_flipped(images, most, self.epoch)
        return shifted_and_flipped(images, most)

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as red, green and blue."""
        return data[index][0].permute(1, 2, 0).numpy()


def standardised(images: torch.Tensor) -> torch.Tensor:
    """Convert pixels of 0 to 255 to floats with mean 0 and standard deviation 1 per colour."""
    mean = torch.tensor(MEAN, device=images.device).view(3, 1, 1)
    deviation = torch.tensor(DEVIATION, device=images.device).view(3, 1, 1)
    floats = images.float() / 255
    return ((floats - mean) / deviation).contiguous(memory_format=torch.channels_last)
