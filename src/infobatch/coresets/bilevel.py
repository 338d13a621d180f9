"""Choosing the samples whose gradients lower the loss of a validation set: GLISTER."""

from __future__ import annotations

import numpy as np
import torch

from infobatch.checks import check_count
from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, as_floats, check_k, one_hot
from infobatch.coresets.vectors import OuterProducts, with_one

Validation = tuple[Array, Array, Array]  # features, logits, labels
LIKELY = 32  # gains computed first: the largest of them is close to the largest of all
ROUNDING = 16  # times the precision of a float


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
    gradient in the last layer; after a choice, the layer's weights take a step W ← W − η g_i, and the
    validation gradient is recomputed exactly: (softmax(W h) − y) ⊗ [1, h]. A second, similar sample is
    therefore worth less than the first.

    DeepCore never takes the step (a misspelt call), so its published figures are for a plain
    ranking.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        logits: (samples, classes), the outputs of the network.
        labels: the class of each sample.
        k: how many samples to choose.
        validation: (features, logits, labels) of held-out samples; by default, the training set itself.
        step_size: η.
        picks_per_step: how many choices are made between two steps; more are faster.

    Returns:
        The indices of the chosen samples, in the order of choice.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.
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
    gains = _Gains(OuterProducts(errors, inputs))
    held_inputs, held_logits, targets = held_inputs.T, held_logits.T.contiguous(), targets.T
    chosen: list[int] = []
    while len(chosen) < k:
        slope = (held_logits.softmax(0) - targets) @ held_inputs.T / held_inputs.shape[1]
        best = gains.largest(slope, min(picks_per_step, k - len(chosen)))
        chosen += best.tolist()
        held_logits -= step_size * errors[best].T @ (inputs[best] @ held_inputs)
    return np.array(chosen, np.int64)


class _Gains:
    """⟨g_i, slope⟩ for a slope that changes a little at a time: few need to be recomputed.

    A gain rises by at most ‖g_i‖ times the change of the slope, so an old gain gives an upper
    bound. Only samples whose bound reaches the largest gain can be the next choice, and most
    samples have a small gradient.
    """

    def __init__(self, gradients: OuterProducts) -> None:
        self._gradients = gradients
        self._lengths = gradients.squared_norms().sqrt()
        self._bounds = torch.full_like(self._lengths, torch.inf)  # -inf once chosen
        self._left = len(gradients)
        self._slope: torch.Tensor | None = None

    def largest(self, slope: torch.Tensor, count: int) -> torch.Tensor:
        """Choose the samples with the largest gains; ties go to the lower index."""
        moved = 0.0 if self._slope is None else float((slope - self._slope).norm())
        rounding = ROUNDING * torch.finfo(slope.dtype).eps * float(slope.norm())
        self._slope = slope
        self._bounds += self._lengths * (moved + rounding)
        likely = self._bounds.topk(min(self._left, max(count, LIKELY))).indices
        self._bounds[likely] = self._computed(likely)
        reached = self._bounds[likely].topk(count).values[-1]
        candidates = (self._bounds >= reached).nonzero()[:, 0]
        gains = self._computed(candidates)
        self._bounds[candidates] = gains
        best = candidates[gains.sort(descending=True, stable=True).indices[:count]]
        self._bounds[best] = -torch.inf
        self._left -= count
        return best

    def _computed(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._slope is not None
        some = self._gradients.take(rows)
        return ((some.right @ self._slope.T) * some.left).sum(1)


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
