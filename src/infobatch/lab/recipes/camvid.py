"""Semantic segmentation of CamVid's street scenes with a small encoder-decoder and an auxiliary head.

367 images of 180 × 240 for 30 epochs: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from infobatch import PerSample, scoring
from infobatch.lab.datasets.readers import CamVid
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.options import number_from
from infobatch.lab.recipes.evaluation import batches, only_looking

NUM_CLASSES, VOID = 11, 11
AUXILIARY_FACTOR = 0.4
NUM_SMOKE = 32


@dataclass
class Recipe:
    """Pixel-wise cross-entropy of two heads, AdamW; mean intersection over union on the test split.

    A sample is ``(image, mask)``, both uint8.

    Options:
        scale: divide height and width by this; masks keep every ``scale``-th pixel.
    """

    folder: Path | None = None
    smoke: bool = False
    scale: int = 1
    epochs: int = 30

    batch_size = 8
    learning_rate = 4e-3
    evaluate_every = 5
    metric = "mIoU"
    unit = "points"
    margin = 1.0

    def __post_init__(self) -> None:
        number_from("scale", self.scale, 1, 4)
        number_from("epochs", self.epochs, 1)
        self.source = CamVid(self.folder)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """367 scenes to train, 233 to test."""
        count = NUM_SMOKE if self.smoke else None
        return self._scenes("train", count), self._scenes("test", count)

    def _scenes(self, split: str, count: int | None) -> Tensors:
        images, masks = map(torch.from_numpy, self.source.split(split, count))
        if self.scale > 1:
            images = functional.avg_pool2d(images.float(), self.scale).round().to(images.dtype)
            masks = masks[:, :: self.scale, :: self.scale].contiguous()
        return Tensors(images, masks)

    def model(self) -> nn.Module:
        """An encoder of three sizes and a decoder with skip connections."""
        return EncoderDecoder((16, 32, 64), NUM_CLASSES).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """The loss of both heads over the pixels that are not void."""
        images, masks = mirrored(*batch)
        logits, auxiliary = model(prepared(images))
        return scoring.segmentation(
            logits, masks, ignore_index=VOID, auxiliary=[(auxiliary, AUXILIARY_FACTOR)]
        )

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """The mean over the classes of intersection over union, in percent, without void."""
        confusion = torch.zeros(NUM_CLASSES, NUM_CLASSES, dtype=torch.int64)
        with only_looking(model) as device:
            for images, masks in batches(data, 16):
                predicted = model(prepared(images.to(device)))[0].argmax(1).cpu()
                counted = masks != VOID
                pairs = masks[counted].long() * NUM_CLASSES + predicted[counted]
                confusion += torch.bincount(pairs, minlength=NUM_CLASSES**2).view_as(confusion)
        return 100 * mean_iou(confusion)

    def labels(self, data: Dataset[Any]) -> list[int]:
        """The most frequent class of each scene."""
        return [
            int(torch.bincount(mask.flatten(), minlength=NUM_CLASSES + 1)[:NUM_CLASSES].argmax())
            for _, masks in batches(data, 32)
            for mask in masks
        ]

    def show(self, data: Dataset[Any], index: int) -> np.ndarray:
        """The scene, as red, green and blue, at half its size."""
        image: np.ndarray = data[index][0].permute(1, 2, 0).numpy()[::2, ::2]
        return image


def mean_iou(confusion: torch.Tensor) -> float:
    """The mean over the classes that occur; rows are true classes, columns predicted ones."""
    intersection = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - intersection
    return float((intersection / union)[union > 0].mean())


def prepared(images: torch.Tensor) -> torch.Tensor:
    """Pixels of 0 to 255 as floats around 0."""
    floats = (images.float() - 104) / 70  # the training split's mean and standard deviation
    return floats.contiguous(memory_format=torch.channels_last)


def mirrored(images: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flip every second scene at random, with its mask."""
    flips = torch.rand(len(images), device=images.device) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images)
    return images, torch.where(flips.view(-1, 1, 1), masks.flip(2), masks)


class EncoderDecoder(nn.Module):
    """Encode to an eighth of the size, decode to a half; logits at the size of the image.

    The auxiliary head uses the encoder's last features, before the context module.
    """

    def __init__(self, widths: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        low, middle, high = widths
        self.to_half_size = block(3, low, stride=2)
        self.to_quarter_size = nn.Sequential(block(low, middle, stride=2), block(middle, middle))
        self.to_eighth_size = nn.Sequential(block(middle, high, stride=2), block(high, high))
        self.auxiliary = nn.Conv2d(high, num_classes, 1)
        self.context = nn.Sequential(block(high, high, dilation=2), block(high, high, dilation=4))
        self.up_to_quarter = block(high + middle, middle)
        self.up_to_half = block(middle + low, low)
        self.head = nn.Conv2d(low, num_classes, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of the head and of the auxiliary head, both (B, classes, H, W)."""
        half = self.to_half_size(images)
        quarter = self.to_quarter_size(half)
        eighth = self.to_eighth_size(quarter)
        features = self.up_to_quarter(
            torch.cat([resized(self.context(eighth), quarter), quarter], 1)
        )
        features = self.up_to_half(torch.cat([resized(features, half), half], 1))
        return resized(self.head(features), images), resized(self.auxiliary(eighth), images)


def block(inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """A 3 × 3 convolution, its batch normalisation and a ReLU."""
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def resized(features: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Resize features to the height and width of others."""
    return functional.interpolate(
        features, size=like.shape[-2:], mode="bilinear", align_corners=False
    )
