"""Diffusion: a small UNet from diffusers on the embedded subset of Fashion-MNIST.

12,000 images, halved to 14 × 14, for 12 epochs: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from infobatch import PerSample, scoring
from infobatch.lab.datasets import fashion
from infobatch.lab.datasets.tensors import Tensors, column
from infobatch.lab.options import number_from, one_of
from infobatch.lab.recipes.denoising import NUM_TIMESTEPS, SIDE, Denoiser, denoiser_of, draw_images
from infobatch.lab.recipes.evaluation import batches, only_looking
from infobatch.lab.recipes.frechet import features_of, frechet_distance, train_classifier

PREDICTIONS = ("epsilon", "v_prediction", "sample")
NUM_DRAWN, DRAWING_STEPS = 500, 20
_SEED = 0  # of the held-out noise and the drawn images, not of a run


@dataclass
class Recipe:
    """DDPM's noise in 1,000 steps, AdamW; options ``prediction`` and ``min_snr``.

    The metric is the denoising loss of held-out images, at noise and timesteps that are the same for
    every model; ``extra_metrics`` has the Fréchet distance of drawn images. A sample is ``(image,
    label)``; the labels are only for the classifier and the report.

    Options:
        prediction: what the network predicts, by diffusers' names.
        min_snr: the gamma of min-SNR weights (5 in the paper); 0 leaves the loss unweighted.
        images: how many images to train on, starting from the first.
    """

    folder: Path | None = None
    smoke: bool = False
    prediction: str = "epsilon"
    min_snr: float = 0.0
    num_images: int = field(default=fashion.NUM_TRAIN, metadata={"option": "images"})
    epochs: int = 12

    batch_size = 64
    learning_rate = 2e-3
    evaluate_every = 3
    metric = "denoising loss"
    higher_is_better = False
    margin = 0.001

    def __post_init__(self) -> None:
        one_of("prediction", self.prediction, PREDICTIONS)
        if not 0 <= self.min_snr < float("inf"):
            raise ValueError(f"min_snr={self.min_snr}, expected a number >= 0; 0 turns it off.")
        number_from("images", self.num_images, 1, fashion.NUM_TRAIN)
        number_from("epochs", self.epochs, 1)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """12,000 training images or as many as requested, and 2,000 test images.

        They have half the size, values from −1 to 1, and padding to 16 × 16.
        """
        train_x, train_y, test_x, test_y = fashion.load()
        low, high = train_x.min(), train_x.max()

        def rescaled(images: torch.Tensor) -> torch.Tensor:
            halved = functional.avg_pool2d((images - low) / (high - low) * 2 - 1, 2)
            return functional.pad(halved, [(SIDE - halved.shape[-1]) // 2] * 4, value=-1.0)

        count = self.num_images
        self.train = Tensors(rescaled(train_x[:count]), train_y[:count])
        return self.train, Tensors(rescaled(test_x), test_y)

    def model(self) -> nn.Module:
        """A UNet of three sizes."""
        return Denoiser(self.prediction)

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """The denoising loss at a random timestep; the score is relative to its timestep's mean."""
        images, _ = batch
        noise = torch.randn_like(images)
        timesteps = torch.randint(NUM_TIMESTEPS, (len(images),), device=images.device)
        denoiser = denoiser_of(model)
        predicted, target = self._predict(model, images, noise, timesteps)
        weights = None
        if self.min_snr:
            alphas = denoiser.scheduler.alphas_cumprod
            weights = scoring.min_snr_weights(alphas, timesteps, self.min_snr, self.prediction)
        return scoring.diffusion(
            predicted, target, timesteps, weights=weights, timestep_means=denoiser.timestep_means
        )

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """The mean squared error of the prediction on held-out images, at fixed noise."""
        total, count = 0.0, 0
        generator = torch.Generator().manual_seed(_SEED)
        with only_looking(model) as device:
            for images, _ in batches(data, 250):
                noise = torch.randn(images.shape, generator=generator).to(device)
                timesteps = torch.randint(NUM_TIMESTEPS, (len(images),), generator=generator)
                predicted, target = self._predict(
                    model, images.to(device), noise, timesteps.to(device)
                )
                total += float((predicted - target).square().mean()) * len(images)
                count += len(images)
        return total / count

    def extra_metrics(self, model: nn.Module, data: Dataset[Any]) -> dict[str, float]:
        """The Fréchet distance between images that the model draws and held-out ones."""
        with torch.random.fork_rng(devices=[]):  # the classifier is the same for every run
            torch.manual_seed(_SEED)
            classifier = fashion.small_cnn()
        images, labels = (tensor[: 256 if self.smoke else None] for tensor in self.train.tensors)
        classifier = train_classifier(classifier, images, labels)
        count = 64 if self.smoke else NUM_DRAWN
        with only_looking(model):
            steps = 2 if self.smoke else DRAWING_STEPS
            drawn = draw_images(denoiser_of(model), count, steps=steps, seed=_SEED)
        real = features_of(classifier, column(data, 0))
        return {
            "frechet_distance": frechet_distance(features_of(classifier, drawn.cpu()), real),
        }

    def labels(self, data: Dataset[Any]) -> list[int]:
        """The class of each image."""
        return [int(label) for label in column(data, 1)]

    def show(self, data: Dataset[Any], index: int) -> Any:
        """The image, as grey values."""
        image = data[index][0][0].numpy()
        return np.round(127.5 * (image + 1)).astype(np.uint8)

    def _predict(
        self,
        model: nn.Module,
        images: torch.Tensor,
        noise: torch.Tensor,
        timesteps: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's prediction for noisy images, and its target."""
        scheduler = denoiser_of(model).scheduler
        predicted = model(scheduler.add_noise(images, noise, timesteps), timesteps)
        target = scoring.diffusion_target(
            self.prediction, images, noise, timesteps, scheduler.alphas_cumprod
        )
        return predicted, target
