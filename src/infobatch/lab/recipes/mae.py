"""Pretraining: a masked autoencoder on CIFAR-10, judged by a linear probe of its frozen features.

20,000 images for 20 epochs: minutes on two cores. The probe is fitted halfway and at the end, on
separate images: computing the features takes as long as an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from infobatch import PerSample, scoring
from infobatch.lab.datasets.readers import cifar10
from infobatch.lab.datasets.tensors import Tensors, column
from infobatch.lab.options import number_from
from infobatch.lab.recipes.cifar10 import CLASS_NAMES, standardised
from infobatch.lab.recipes.evaluation import batches, only_looking
from infobatch.lab.smoke import SMOKE_TRAIN

NUM_TRAIN, NUM_PROBE, NUM_TEST, NUM_CLASSES = 20_000, 10_000, 5_000, 10
GRID = 8  # patches per side
RIDGE = 1e-2


@dataclass
class Recipe:
    """A ViT from transformers, three quarters of the patches masked, normalised pixels, AdamW.

    A sample is ``(image, label)``; the labels are only for the probe and the report.

    Options:
        images: how many images to train on, starting from the first.
    """

    folder: Path | None = None
    smoke: bool = False
    source: str = "folder"
    num_images: int = field(default=NUM_TRAIN, metadata={"option": "images"})
    epochs: int = 20

    batch_size = 128
    learning_rate = 2e-3
    evaluate_every = 10
    metric = "linear probe accuracy"
    unit = "points"
    counts_items = True
    margin = 1.0
    class_names = CLASS_NAMES

    def __post_init__(self) -> None:
        number_from("images", self.num_images, 1, NUM_TRAIN)
        number_from("epochs", self.epochs, 1)
        self.images = cifar10(self.folder, self.source)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """20,000 training images or as many as requested, and 5,000 test images, the first ones.

        The probe is fitted to the 10,000 training images after those: it has not seen what a run
        holds out of its training set for validation.
        """
        count = SMOKE_TRAIN if self.smoke else self.num_images
        probe_count = SMOKE_TRAIN if self.smoke else NUM_PROBE
        images, labels = map(torch.from_numpy, self.images.train(count + probe_count))
        test_x, test_y = map(torch.from_numpy, self.images.test())
        self.probe_train = Tensors(images[count:], labels[count:])
        return Tensors(images[:count], labels[:count]), Tensors(
            test_x[:NUM_TEST], test_y[:NUM_TEST]
        )

    def model(self) -> ViTMAEForPreTraining:
        """Three layers of width 64 and a one-layer decoder of width 48, on patches of 4 × 4."""
        model = ViTMAEForPreTraining(
            ViTMAEConfig(
                image_size=32,
                patch_size=4,
                hidden_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=256,
                decoder_hidden_size=48,
                decoder_num_hidden_layers=1,
                decoder_num_attention_heads=4,
                decoder_intermediate_size=192,
                mask_ratio=0.75,
                norm_pix_loss=True,
                initializer_range=0.1,  # the default is for widths ten times as large
            )
        )

        # transformers 5 leaves the fixed position embeddings of a new model at zero: without them
        # the patches have no position, and there is little to learn.
        fixed = (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed)
        for embeddings in fixed:
            embeddings.data[0, 1:] = grid_positions(GRID, embeddings.shape[-1])
        return model

    def optimizer(self, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """AdamW with the betas of the MAE paper."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, learning_rate, betas=(0.9, 0.95), weight_decay=0.05)

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """The error of the masked patches."""
        images, _ = batch
        flips = torch.rand(len(images), device=images.device) < 0.5
        pixels = standardised(torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images))
        output = model(pixels)
        return scoring.masked_autoencoding(
            output.logits, patches_of(pixels), output.mask, normalise=True
        )

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """The accuracy in percent of a ridge classifier on frozen features.

        It is fitted in closed form to images that no arm trains on, and does not depend on a seed.
        """
        features, labels = frozen_features(model, self.probe_train)
        mean, spread = features.mean(0), features.std(0).clamp_min(1e-6)
        weights = ridge_classifier((features - mean) / spread, labels)
        features, labels = frozen_features(model, data)
        outputs = with_constant((features - mean) / spread) @ weights
        return 100 * float((outputs.argmax(1) == labels).double().mean())

    def labels(self, data: Dataset[Any]) -> list[int]:
        """The class of each image."""
        return [int(label) for label in column(data, 1)]

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as red, green and blue."""
        return data[index][0].permute(1, 2, 0).numpy()


def grid_positions(side: int, width: int) -> torch.Tensor:
    """Sines and cosines of grid positions, (side², width): half the width for each axis."""
    wavelengths = 10_000 ** (torch.arange(width // 4) / (width // 4))
    angles = torch.arange(side).unsqueeze(1) / wavelengths
    places = torch.cat([angles.sin(), angles.cos()], 1)
    rows = places.unsqueeze(1).expand(-1, side, -1)
    columns = places.unsqueeze(0).expand(side, -1, -1)
    return torch.cat([rows, columns], 2).flatten(0, 1)


def patches_of(pixels: torch.Tensor, size: int = 4) -> torch.Tensor:
    """Images (B, 3, H, W) as patches (B, L, size · size · 3), in the order of ``patchify``."""
    count, colours, height, width = pixels.shape
    grid = pixels.reshape(count, colours, height // size, size, width // size, size)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(count, -1, size * size * colours)


def frozen_features(model: nn.Module, data: Dataset[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over the patches of the encoder's output for whole images, and the labels."""
    features, classes = [], []
    with only_looking(model) as device:
        for images, labels in batches(data, 500):
            tokens = encode_whole(model, standardised(images.to(device)))
            features.append(tokens[:, 1:].mean(1).double())
            classes.append(labels.to(device))
    return torch.cat(features), torch.cat(classes)


def encode_whole(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The encoder's output with no patch masked: (B, 1 + L, width).

    The model always masks, with a ratio from its configuration; here its parts are called one by
    one, so that nothing in it needs to change.
    """
    encoder = model.vit
    positions = encoder.embeddings.position_embeddings
    tokens = encoder.embeddings.patch_embeddings(pixels) + positions[:, 1:]
    first = (encoder.embeddings.cls_token + positions[:, :1]).expand(len(pixels), -1, -1)
    tokens = torch.cat([first, tokens], 1)
    for layer in encoder.layers:
        tokens = layer(tokens, None)
    whole: torch.Tensor = encoder.layernorm(tokens)
    return whole


def with_constant(features: torch.Tensor) -> torch.Tensor:
    """Features with a column of ones."""
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def ridge_classifier(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The weights (D + 1, classes) of least squares to one-hot labels, with a small penalty."""
    inputs = with_constant(features)
    targets = torch.nn.functional.one_hot(labels, NUM_CLASSES).to(inputs)
    penalty = RIDGE * len(inputs) * torch.eye(inputs.shape[1]).to(inputs)
    penalty[-1, -1] = 0.0  # no penalty on the constant
    weights: torch.Tensor = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ targets)
    return weights
