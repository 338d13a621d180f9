"""Choosing the samples whose gradients lower the loss of a validation set: GLISTER."""

from __future__ import annotations

import numpy as np
import torch

from infobatch.checks import check_count
from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, as_floats, check_k, one_hot
from infobatch.coresets.vectors import with_one

Validation = tuple[Array, Array, Array]  # features, logits, labels


def glister(
    features: Array,
    logits: Array,
    labels: Array,
    k: int,
    *,
    validation: Validation | None = None,
    step_size: float = 0.1,
    picks_per_step: int = 1,
) -> Indices:
    """GLISTER: the largest ⟨g_i, ∇L_validation⟩, with a step of the last layer after each choice.

    Killamsetty et al., *GLISTER: Generalization based Data Subset Selection* (AAAI 2021). g is the
    gradient in the last layer; after a choice, the layer's weights take a step W ← W − η g_i (η =
    ``step_size``), and the validation gradient is recomputed exactly: (softmax(W h) − y) ⊗ [1, h].
    A second, similar sample is therefore worth less than the first. ``validation`` is (features,
    logits, labels) of held-out samples; by default, the training set itself. ``picks_per_step``
    makes several choices between two steps, which is faster.

    DeepCore never takes the step (a misspelt call), so its published figures are for a plain
    ranking.
    """
    call = "glister()"
    inputs, errors, _, _ = _layer(call, features, logits, labels)
    k = check_k(call, k, len(inputs))
    held_out = (features, logits, labels) if validation is None else validation
    held_inputs, _, held_logits, targets = _layer(f"{call} validation", *held_out)
    if held_inputs.shape[1] != inputs.shape[1] or held_logits.shape[1] != errors.shape[1]:
        raise ValueError(
            f"{call} got validation features of {held_inputs.shape[1] - 1} numbers and logits of "
            f"{held_logits.shape[1]} classes, expected {inputs.shape[1] - 1} and {errors.shape[1]}, as "
            "the training set has."
        )
    check_count(f"{call} picks_per_step", picks_per_step, "it counts choices")
    available = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    chosen: list[int] = []
    while len(chosen) < k:
        slope = (held_logits.softmax(1) - targets).T @ held_inputs / len(held_inputs)
        gains = ((inputs @ slope.T) * errors).sum(1) + available
        best = _largest(gains, min(picks_per_step, k - len(chosen)))
        available[best] = -torch.inf
        chosen += best.tolist()
        held_logits -= step_size * (held_inputs @ inputs[best].T) @ errors[best]
    return np.array(chosen, np.int64)


def _largest(gains: torch.Tensor, count: int) -> torch.Tensor:
    if count == 1:
        return gains.argmax()[None]
    return gains.sort(descending=True, stable=True).indices[:count]


def _layer(
    call: str, features: Array, logits: Array, labels: Array
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """[1, h], p − y, logits and y of a set."""
    values = as_floats(call, "features", features, ndim=(2,))
    outputs = as_floats(call, "logits", logits, ndim=(2,)).to(values)
    if len(outputs) != len(values):
        raise ValueError(
            f"{call} got features of {len(values)} and logits of {len(outputs)} samples, expected the "
            "same number of both."
        )
    targets = one_hot(call, labels, outputs)
    return with_one(values), outputs.softmax(1) - targets, outputs.clone(), targets
