"""Choosing samples near the decision boundary: DeepFool and CAL."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from infobatch.coresets.checks import Array, as_floats, as_probabilities
from infobatch.coresets.geometry import SMALLEST_PROBABILITY
from infobatch.coresets.vectors import blocks

OVERSHOOT = 0.02  # as in DeepFool: steps go slightly beyond the boundary


def deepfool(
    model: nn.Module, data: Dataset[Any], *, max_iterations: int = 50, batch_size: int = 256
) -> torch.Tensor:
    """−‖r‖² for the smallest change r of the input that changes the class: nearest to the border first.

    Ducoffe and Precioso, *Adversarial Active Learning* (2018), by DeepFool (Moosavi-Dezfooli et al., CVPR
    2016): the network is linearised, the input takes a step to the nearest boundary between two
    classes, and this is repeated until the class changes. Each iteration takes one backward pass per class.

    Args:
        model: a network that returns logits.
        data: samples (input, …), the input a tensor.
        max_iterations: the largest number of steps.
        batch_size: the number of samples in a batch.

    Returns:
        One score per sample, where higher scores are chosen first.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        distances = [
            _squared_perturbations(model, batch[0].to(device), max_iterations).cpu()
            for batch in DataLoader(data, batch_size, generator=torch.Generator())
        ]
    finally:
        model.train(was_training)
    return -torch.cat(distances)


def _squared_perturbations(
    model: nn.Module, inputs: torch.Tensor, max_iterations: int
) -> torch.Tensor:
    changes = torch.zeros_like(inputs, dtype=torch.float32)
    rows = torch.arange(len(inputs), device=inputs.device)  # samples that are still in their class
    original: torch.Tensor | None = None
    for _ in range(max_iterations):
        moved = (inputs[rows] + (1 + OVERSHOOT) * changes[rows]).requires_grad_()
        logits = model(moved)
        if original is None:
            original = logits.argmax(1)
        kept = logits.argmax(1) == original[rows]
        slopes = _slopes(logits, moved)[kept]
        rows, values = rows[kept], logits.detach()[kept]
        if not len(rows):
            break
        changes[rows] += _step_to_border(values, slopes, original[rows]).view_as(changes[rows])
    return changes.flatten(1).square().sum(1)


def _slopes(logits: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """The gradient of each class's logit in the input: (samples, classes, input size)."""
    by_class = [
        torch.autograd.grad(logits[:, number].sum(), inputs, retain_graph=True)[0].flatten(1)
        for number in range(logits.shape[1])
    ]
    return torch.stack(by_class, dim=1)


def _step_to_border(
    logits: torch.Tensor, slopes: torch.Tensor, original: torch.Tensor
) -> torch.Tensor:
    """The shortest step to where another class's logit is equal, for a linear model."""
    row = torch.arange(len(logits), device=logits.device)
    gaps = logits[row, original][:, None] - logits
    normals = slopes - slopes[row, original][:, None]
    squares = normals.square().sum(2)
    distances = gaps / squares.sqrt()
    distances[row, original] = torch.inf
    distances = torch.where(squares > 0, distances, torch.inf)
    nearest = distances.argmin(1)
    scale = gaps[row, nearest] / squares[row, nearest]
    steps = scale[:, None] * normals[row, nearest]
    # If the logits do not depend on the input, no step changes the class.
    return steps.masked_fill(distances.amin(1).isinf()[:, None], torch.inf)


def cal(features: Array, probabilities: Array, *, neighbours: int = 10) -> torch.Tensor:
    """CAL: the mean symmetric KL divergence to a sample's nearest neighbours, largest first.

    Margatina et al., *Active Learning by Acquiring Contrastive Examples* (EMNLP 2021): the samples
    are similar to the network, yet predicted differently. Neighbours are found by Euclidean
    distance of features. DeepCore takes the smallest instead (reported there as an issue, still
    open), so its published figures are for the opposite samples.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        probabilities: (samples, classes), the softmax outputs of a network.
        neighbours: how many neighbours a sample is compared with.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.
    """
    call = "cal()"
    values = as_floats(call, "features", features, ndim=(2,))
    outputs = as_probabilities(call, probabilities).to(values).clamp_min(SMALLEST_PROBABILITY)
    count = len(values)
    if len(outputs) != count:
        raise ValueError(
            f"{call} got features of {count} and probabilities of {len(outputs)} samples, expected the "
            "same number of both."
        )
    if not 1 <= neighbours < count:
        raise ValueError(
            f"{call} got neighbours={neighbours} for {count} samples, expected 1 to {count - 1}: a "
            "sample is not its own neighbour."
        )
    values = values - values.mean(0)
    half_squares = values.square().sum(1) / 2
    logs = outputs.log()
    scores = values.new_empty(count)
    for block in blocks(count):
        closeness = torch.addmm(-half_squares, values[block], values.T)  # up to a constant per row
        closeness[torch.arange(len(block)), block] = -torch.inf
        nearest = closeness.topk(neighbours, dim=1).indices
        of_block, our_logs = outputs[block][:, None], logs[block][:, None]
        scores[block] = ((of_block - outputs[nearest]) * (our_logs - logs[nearest])).sum(2).mean(1)
    return scores
