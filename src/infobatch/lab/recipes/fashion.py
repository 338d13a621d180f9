"""Image classification on the embedded part of Fashion-MNIST: no data folder needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from infobatch.lab import fashion


@dataclass
class Recipe:
    """A small CNN, SGD by default."""

    folder: Path | None = None
    smoke: bool = False

    epochs = 30
    batch_size = 128
    learning_rate = 0.1
    metric = "accuracy"
    margin = 0.5

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """12,000 images to train, 2,000 to test."""
        train_x, train_y, test_x, test_y = fashion.load()
        return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)

    def model(self) -> nn.Module:
        """Four convolutions and a linear layer."""
        return fashion.small_cnn()

    def optimizer(self, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """SGD with Nesterov momentum."""
        return torch.optim.SGD(
            model.parameters(), learning_rate, momentum=0.9, weight_decay=5e-4, nesterov=True
        )

    def losses(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Cross-entropy."""
        images, labels = batch
        return functional.cross_entropy(model(images), labels, reduction="none")

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """Accuracy in percent."""
        right = total = 0
        for images, labels in DataLoader(data, 500):
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
        return 100 * right / total

    def labels(self, data: Dataset[Any]) -> list[int]:
        """The class of each sample."""
        return [int(data[index][1]) for index in range(len(data))]  # type: ignore[arg-type]

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as grey values."""
        image = data[index][0][0].numpy()
        low, high = image.min(), image.max()
        return np.round(255 * (image - low) / (high - low)).astype(np.uint8)
