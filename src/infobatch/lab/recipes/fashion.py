"""Image classification on the embedded subset of Fashion-MNIST: no data folder needed.

Few training images, shifted and flipped at random, so that half the epochs are visibly worse and
the comparison can tell; many test images, since they cost little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from infobatch.lab.datasets import fashion
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.options import number_from, one_of
from infobatch.lab.recipes.augmentation import shifted_and_flipped
from infobatch.lab.recipes.image_classification import ImageClassification
from infobatch.lab.recipes.image_networks import resnet

NUM_TRAIN = 5_000
MOST_SHIFT = 1
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cnn": partial(fashion.small_cnn, 16),
    "small_resnet": partial(resnet, (16, 32, 64), colours=1),
}


@dataclass
class Recipe(ImageClassification):
    """Images of half the size, SGD by default.

    Options:
        epochs: 40 unless set.
        network: ``cnn`` of 33,338 parameters, or ``small_resnet`` of 77,754.
    """

    epochs: int = 40
    network: str = "cnn"

    evaluate_every = 10
    margin = 0.5
    class_names = fashion.CLASS_NAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("network", self.network, tuple(NETWORKS))
        number_from("epochs", self.epochs, 1)

    @property
    def learning_rate(self) -> float:
        """For SGD, twice the usual rate: the best mean over the arms on a validation split."""
        return 2 * super().learning_rate if self.optimizer_name == "sgd" else super().learning_rate

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """5,000 training and 9,000 test images of 14 × 14 pixels."""
        train_x, train_y, test_x, test_y = fashion.load()
        images = functional.avg_pool2d(torch.cat([train_x, test_x]), 2)
        labels = torch.cat([train_y, test_y])
        self.background = float(images.min())
        return (
            Tensors(images[:NUM_TRAIN], labels[:NUM_TRAIN]),
            Tensors(images[NUM_TRAIN:], labels[NUM_TRAIN:]),
        )

    def model(self) -> nn.Module:
        """The chosen network."""
        return NETWORKS[self.network]().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Use the memory format in which convolutions are fastest here."""
        return images.contiguous(memory_format=torch.channels_last)

    def augment(self, images: torch.Tensor) -> torch.Tensor:
        """Shift and flip."""
        return shifted_and_flipped(images, MOST_SHIFT, fill=self.background)

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as grey values."""
        image = data[index][0][0].numpy()
        low, high = image.min(), image.max()
        return np.round(255 * (image - low) / (high - low)).astype(np.uint8)
