"""The Fréchet distance between images, in the feature space of a small classifier trained here.

Like FID, but with features learned from this data rather than from ImageNet: only comparable
between runs of the same recipe.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from infobatch.lab.recipes.evaluation import only_looking

_SEED, _EPOCHS, _BATCH = 0, 5, 128


def train_classifier(
    model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor
) -> nn.Sequential:
    """Train a classifier from its initial weights; the same images give the same result."""
    generator = torch.Generator().manual_seed(_SEED)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    model.train()
    for _ in range(_EPOCHS):
        for batch in torch.split(torch.randperm(len(images), generator=generator), _BATCH):
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    return model.eval()


def features_of(model: nn.Sequential, images: torch.Tensor) -> torch.Tensor:
    """The inputs of the classifier's last layer, (N, D), in float64."""
    with only_looking(model):
        return torch.cat([model[:-1](part) for part in torch.split(images, 500)]).double()


def frechet_distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """|m − m'|² + tr(C + C' − 2 (C C')^½) of the features' means and covariances.

    >>> features = torch.randn(100, 3, dtype=torch.float64)
    >>> round(frechet_distance(features, features + 2), 6)
    12.0
    """
    means = first.mean(0) - second.mean(0)
    covariance, other = torch.cov(first.T), torch.cov(second.T)
    # tr (C C')^½ is the sum of the roots of the eigenvalues of C^½ C' C^½, which is symmetric.
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    mixed = torch.linalg.eigvalsh(root @ other @ root).clamp_min(0).sqrt().sum()
    return float(means.square().sum() + covariance.trace() + other.trace() - 2 * mixed)
