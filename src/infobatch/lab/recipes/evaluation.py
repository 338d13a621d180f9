"""Evaluation of a model without changing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


@contextmanager
def only_looking(model: nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; yields the model's device and restores its mode."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def batches(data: Dataset[Any], size: int, **loader: Any) -> DataLoader[Any]:
    """The samples in order, without drawing a seed from the training's random stream."""
    return DataLoader(data, size, generator=torch.Generator(), **loader)


def accuracy(
    model: nn.Module,
    data: Dataset[Any],
    batch_size: int,
    *,
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda inputs: inputs,
    **loader: Any,
) -> float:
    """The percentage of samples ``(input, label)`` whose label has the highest logit."""
    right = total = 0
    with only_looking(model) as device:
        for inputs, labels in batches(data, batch_size, **loader):
            right += int((model(prepare(inputs.to(device))).argmax(1) == labels.to(device)).sum())
            total += len(labels)
    return 100 * right / total


def cross_entropy(
    model: nn.Module,
    data: Dataset[Any],
    batch_size: int,
    *,
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda inputs: inputs,
) -> float:
    """The mean cross-entropy of samples ``(input, label)``: less noisy than an accuracy."""
    total, count = 0.0, 0
    with only_looking(model) as device:
        for inputs, labels in batches(data, batch_size):
            logits = model(prepare(inputs.to(device)))
            total += float(functional.cross_entropy(logits, labels.to(device), reduction="sum"))
            count += len(labels)
    return total / count
