"""Image classification on the embedded part of Fashion-MNIST: no data folder needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import Dataset

from infobatch.lab import fashion
from infobatch.lab.recipes.image_classification import ImageClassification
from infobatch.lab.recipes.tensors import Tensors


@dataclass
class Recipe(ImageClassification):
    """A small CNN, SGD by default."""

    epochs = 30
    margin = 0.5

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """12,000 images to train, 2,000 to test."""
        train_x, train_y, test_x, test_y = fashion.load()
        return Tensors(train_x, train_y), Tensors(test_x, test_y)

    def model(self) -> nn.Module:
        """Four convolutions and a linear layer."""
        return fashion.small_cnn()

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as grey values."""
        image = data[index][0][0].numpy()
        low, high = image.min(), image.max()
        return np.round(255 * (image - low) / (high - low)).astype(np.uint8)
