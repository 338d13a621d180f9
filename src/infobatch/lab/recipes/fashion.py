"""Image classification on Fashion-MNIST: the embedded subset, or with a data folder the other images.

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
NUM_SETS = 10  # disjoint training sets among the images that are not embedded
NUM_CLASSES = len(fashion.CLASS_NAMES)
IMAGES = ("embedded", "fresh")
Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
MOST_SHIFT = 1
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cnn": partial(fashion.small_cnn, 16),
    "small_resnet": partial(resnet, (16, 32, 64), colours=1),
}
PROXIES: dict[str, Callable[[], nn.Module]] = {
    "cnn": partial(fashion.small_cnn, 4),
    "small_resnet": partial(resnet, (4, 8, 16), colours=1),
}


@dataclass
class Recipe(ImageClassification):
    """Images of half the size, SGD by default.

    Options:
        epochs: 40 unless set.
        network: ``cnn`` of 33,338 parameters, or ``small_resnet`` of 77,754.
        images: ``embedded``, or ``fresh``: none of the embedded ones, and ten disjoint training sets, so
            that each seed of a comparison has its own (seed 10 has that of seed 0).
        wrong_labels: the share of the training labels that are replaced by another class, the same ones
            in every run on the same images; test labels stay as they are.
    """

    epochs: int = 40
    network: str = "cnn"
    images: str = "embedded"
    wrong_labels: float = 0.0

    evaluate_every = 10
    margin = 0.5
    class_names = fashion.CLASS_NAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("network", self.network, tuple(NETWORKS))
        one_of("images", self.images, IMAGES)
        number_from("epochs", self.epochs, 1)
        if not 0 <= self.wrong_labels < 1:
            raise ValueError(f"wrong_labels={self.wrong_labels} must be a share from 0 to below 1.")
        self._published = fashion.FashionMnist(self.folder) if self.images == "fresh" else None

    @property
    def learning_rate(self) -> float:
        """For SGD, twice the usual rate: the best mean over the arms on a validation split."""
        return 2 * super().learning_rate if self.optimizer_name == "sgd" else super().learning_rate

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """5,000 training and 9,000 test images of 14 × 14 pixels; the first seed's where seeds differ."""
        return self.data_of_seed(0)

    def data_of_seed(self, seed: int) -> tuple[Dataset[Any], Dataset[Any]]:
        """The data of a run with this seed, which matters for fresh images only."""
        number = 0 if self._published is None else seed % NUM_SETS
        train_x, train_y, test_x, test_y = (
            embedded() if self._published is None else fresh(self._published, number)
        )
        self.background = float(train_x.min())
        train_y = with_wrong_labels(train_y, self.wrong_labels, seed=number)
        return Tensors(train_x, train_y), Tensors(test_x, test_y)

    def model(self) -> nn.Module:
        """The chosen network."""
        return NETWORKS[self.network]().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def proxy(self) -> nn.Module:
        """The same network at a quarter of its widths."""
        return PROXIES[self.network]().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

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


def embedded() -> Arrays:
    """The first 5,000 embedded images to train on and the other 9,000 to test on."""
    train_x, train_y, test_x, test_y = fashion.load()
    images = functional.avg_pool2d(torch.cat([train_x, test_x]), 2)
    labels = torch.cat([train_y, test_y])
    return images[:NUM_TRAIN], labels[:NUM_TRAIN], images[NUM_TRAIN:], labels[NUM_TRAIN:]


def fresh(source: fashion.FashionMnist, number: int) -> Arrays:
    """Images that are not embedded: one of ten disjoint training sets of 5,000, and 6,000 to test on.

    48,000 of the published training images and 8,000 of the test images remain. The first 2,000 of the
    latter join the training sets, so that there are ten.
    """
    train, test = fashion.not_embedded(*source.train()), fashion.not_embedded(*source.test())
    pixels, labels = (np.concatenate(arrays) for arrays in zip(train, test, strict=True))
    first, end = number * NUM_TRAIN, NUM_SETS * NUM_TRAIN
    rows = slice(first, first + NUM_TRAIN)
    train_x, test_x = (
        torch.from_numpy(pixels[part].astype(np.float32))[:, None] / 255
        for part in (rows, slice(end, None))
    )
    mean, deviation = train_x.mean(), train_x.std()
    train_x, test_x = (
        functional.avg_pool2d((images - mean) / deviation, 2) for images in (train_x, test_x)
    )
    return train_x, torch.from_numpy(labels[rows]), test_x, torch.from_numpy(labels[end:])


def with_wrong_labels(labels: torch.Tensor, share: float, *, seed: int) -> torch.Tensor:
    """Labels of which a share, chosen at random, is replaced by any other class."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    other = torch.randint(1, NUM_CLASSES, (len(wrong),), generator=generator)
    labels = labels.clone()
    labels[wrong] = (labels[wrong] + other) % NUM_CLASSES
    return labels
