"""Training on weighted samples: batches carry the weights of a coreset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from infobatch import PerSample
from infobatch.wrapper import fetch


class Weighted(Dataset[tuple[Any, float]]):
    """The samples of a coreset with their weights, which are 1 on average."""

    def __init__(self, data: Dataset[Any], weights: np.ndarray[Any, Any]) -> None:
        self.data, self.weights = data, (weights / weights.mean()).tolist()

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: int) -> tuple[Any, float]:
        return self.data[index], self.weights[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, float]]:
        weights = (self.weights[index] for index in indices)
        return list(zip(fetch(self.data, indices), weights, strict=True))


class WithWeights:
    """A collate function for :class:`Weighted`: the batch, and a tensor of weights."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate or default_collate

    def __call__(self, pairs: list[tuple[Any, float]]) -> tuple[Any, torch.Tensor]:
        """Collate the samples, and return them with their weights."""
        samples, weights = zip(*pairs, strict=True)
        return self.collate(list(samples)), torch.tensor(weights)


def scaled(losses: torch.Tensor | PerSample, weights: torch.Tensor) -> torch.Tensor | PerSample:
    """Losses times weights; the scores do not change."""
    if isinstance(losses, PerSample):
        parts = [(part * weights, counts) for part, counts in losses.parts]
        return PerSample(
            losses.losses * weights, losses.scores, losses.extras, losses.counts, parts
        )
    return PerSample(losses * weights, losses.detach())
