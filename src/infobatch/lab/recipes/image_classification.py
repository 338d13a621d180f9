"""The shared part of the image classification recipes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import nn
from torch.utils.data import Dataset

from infobatch import PerSample, scoring
from infobatch.lab.datasets.tensors import column
from infobatch.lab.options import one_of
from infobatch.lab.recipes.evaluation import accuracy, cross_entropy
from infobatch.lab.recipes.mixing import MIXES, mix_images
from infobatch.lab.recipes.optimizers import OPTIMIZERS, build_optimizer
from infobatch.scoring.classification import Score


@dataclass
class ImageClassification:
    """Cross-entropy on augmented images; options ``optimizer``, ``mix`` and ``score``.

    A sample is ``(image, label)``. A recipe adds ``data()`` and ``model()``, and defines how images
    are processed in ``prepare`` and ``augment``.
    """

    folder: Path | None = None
    smoke: bool = False
    optimizer_name: str = field(default="sgd", metadata={"option": "optimizer"})
    mix: str = "none"
    score: str = "loss"

    batch_size = 128
    metric = "accuracy"
    unit = "points"
    label_smoothing = 0.0
    counts_items = True

    def __post_init__(self) -> None:
        one_of("optimizer", self.optimizer_name, tuple(OPTIMIZERS))
        one_of("mix", self.mix, MIXES)
        one_of("score", self.score, get_args(Score))
        if self.mix != "none" and self.score != "loss":
            raise ValueError(
                f"score={self.score!r} is not possible with mix={self.mix!r}: mixed images have their "
                "own score. Use mix=none, or leave score out."
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate that suits the optimizer."""
        return OPTIMIZERS[self.optimizer_name].learning_rate

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Convert stored images to the model's input."""
        return images

    def augment(self, images: torch.Tensor) -> torch.Tensor:
        """Augment stored images at random for training."""
        return images

    def optimizer(self, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """SGD with Nesterov momentum, AdamW, LARS or LAMB."""
        return build_optimizer(self.optimizer_name, model, learning_rate)

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """Cross-entropy; for mixed images, with their mixed labels."""
        images, labels = batch
        images = self.prepare(self.augment(images))
        if self.mix == "none":
            return scoring.cross_entropy(
                model(images),
                labels,
                label_smoothing=self.label_smoothing,
                score=cast("Score", self.score),
            )
        mixed = mix_images(self.mix, images)
        return scoring.mixed_cross_entropy(
            model(mixed.images),
            labels,
            mixed.partners,
            mixed.lam,
            label_smoothing=self.label_smoothing,
        )

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """Accuracy in percent."""
        return accuracy(model, data, 500, prepare=self.prepare)

    def extra_metrics(self, model: nn.Module, data: Dataset[Any]) -> dict[str, float]:
        """The test loss."""
        return {"cross-entropy": cross_entropy(model, data, 500, prepare=self.prepare)}

    def labels(self, data: Dataset[Any]) -> list[int]:
        """The class of each sample."""
        return [int(label) for label in column(data, 1)]
