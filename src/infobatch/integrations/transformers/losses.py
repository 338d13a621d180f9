"""One loss per sample, computed from a model's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from infobatch import PerSample, scoring

IGNORED = -100


def from_outputs(
    outputs: Any,
    inputs: Mapping[str, Any],
    *,
    problem_type: str | None,
    shift: bool,
    label_smoothing: float,
) -> PerSample | None:
    """The samples' losses, as in transformers' own loss functions; None if unknown.

    ``shift`` means that position t predicts label t + 1, as in causal language models.
    """
    if not isinstance(outputs, Mapping):
        return None
    if outputs.get("log_probs") is not None and outputs.get("label_mask") is not None:
        return scoring.per_sequence(
            -outputs["log_probs"], outputs["label_mask"]
        )  # TRL builds no logits
    logits = outputs.get("logits")
    labels = inputs.get("labels")
    if not isinstance(logits, torch.Tensor) or not isinstance(labels, torch.Tensor):
        return None
    labels = labels.to(logits.device)
    if problem_type in ("regression", "multi_label_classification"):
        of_task = scoring.mse if problem_type == "regression" else scoring.binary_cross_entropy
        return of_task(logits.flatten(1), labels.reshape(len(labels), -1))
    if inputs.get("shift_labels") is not None:
        labels = inputs["shift_labels"].to(logits.device)
    elif shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    if labels.dim() == logits.dim() and labels.shape[-1] == 1:
        labels = labels.squeeze(-1)
    shifts_samples = shift and labels.dim() < 2  # one label for the whole sample
    if logits.shape[:-1] != labels.shape or labels.is_floating_point() or shifts_samples:
        return None
    flat = (logits.flatten(0, -2).float(), labels.flatten())
    options: dict[str, Any] = {"ignore_index": IGNORED, "reduction": "none"}
    losses = functional.cross_entropy(*flat, label_smoothing=label_smoothing, **options)
    missing = None
    if label_smoothing:
        with torch.no_grad():
            p = torch.exp(-functional.cross_entropy(*flat, **options))
        missing = 1 - label_smoothing + label_smoothing / logits.shape[-1] - p
    shape = (len(labels), -1)
    counted = labels.reshape(shape) != IGNORED
    return scoring.per_sequence(
        losses.view(shape), counted, None if missing is None else missing.view(shape)
    )
