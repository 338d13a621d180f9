"""Fashion-MNIST: the embedded subset (12,000 training and 2,000 test images), the published files, and a network."""

from __future__ import annotations

import gzip
import lzma
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import nn

from infobatch.lab.datasets.folder import require_data

_GET_FASHION = (
    "Expected the folder 'fashion-mnist' with train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz of "
    "https://github.com/zalandoresearch/fashion-mnist (MIT)."
)
NUM_TRAIN, NUM_TEST, SIDE = 12_000, 2_000, 28
CLASS_NAMES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return train images and labels, test images and labels; images float32, standardised."""
    pixels, classes = embedded()
    images = torch.from_numpy(pixels.astype(np.float32))[:, None] / 255
    labels = torch.from_numpy(classes.astype(np.int64))
    images = (images - images[:NUM_TRAIN].mean()) / images[:NUM_TRAIN].std()
    return images[:NUM_TRAIN], labels[:NUM_TRAIN], images[NUM_TRAIN:], labels[NUM_TRAIN:]


@cache
def embedded() -> tuple[np.ndarray, np.ndarray]:
    """The embedded images (14,000, 28, 28) and labels as stored, training images first."""
    packed = files("infobatch.lab.datasets").joinpath("fashion_mnist_14k.xz").read_bytes()
    raw = np.frombuffer(lzma.decompress(packed), np.uint8)
    count = NUM_TRAIN + NUM_TEST
    return raw[: count * SIDE * SIDE].reshape(count, SIDE, SIDE), raw[count * SIDE * SIDE :]


def not_embedded(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of the images (n, 28, 28), with their labels, that are not in the embedded subset."""
    known = {image.tobytes() for image in embedded()[0]}
    new = np.array([image.tobytes() not in known for image in images])
    return images[new], labels[new]


class FashionMnist:
    """Fashion-MNIST as published: files of pixels and of labels, in the official order."""

    def __init__(self, folder: Path | None) -> None:
        self.path = require_data(folder, "fashion-mnist", _GET_FASHION)

    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """The training images (60,000, 28, 28) uint8 and labels."""
        return self._split("train")

    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """The test images (10,000, 28, 28) uint8 and labels."""
        return self._split("t10k")

    def _split(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        images = self._read(f"{name}-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
        return images, self._read(f"{name}-labels-idx1-ubyte.gz", header=8).astype(np.int64)

    def _read(self, name: str, *, header: int) -> np.ndarray:
        path = require_data(self.path, name, _GET_FASHION)
        return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def small_cnn(width: int = 12) -> nn.Sequential:
    """Four convolutions and a linear layer: seconds per epoch on two cores."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *block(1, width, 2),
        *block(width, 2 * width, 1),
        *block(2 * width, 2 * width, 2),
        *block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
