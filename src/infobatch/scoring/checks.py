"""Checks of scoring arguments: errors say what was called, what it got and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def check_tensor(call: str, name: str, value: object, shape: str, *, least_dims: int) -> None:
    """Raise unless this is a tensor of floating point numbers with a batch dimension in front."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{call} got {type(value).__name__} as {name}, expected a tensor of shape {shape}. Pass "
            "what the model returns."
        )
    if value.dim() < least_dims:
        raise ValueError(
            f"{call} got {name} of shape {tuple(value.shape)}, expected {shape}: the batch comes "
            "first. For a single sample call unsqueeze(0)."
        )
    if not value.is_floating_point():
        raise TypeError(
            f"{call} got {name} of {value.dtype}, expected floating point numbers: an integer has no "
            "gradient. Pass what the model returns, not labels."
        )
    if not value.shape[0]:
        raise ValueError(
            f"{call} got {name} of shape {tuple(value.shape)}: no samples. For a batch without samples "
            "call skip() in place of update()."
        )


def check_shape(
    call: str, name: str, value: object, expected: tuple[int, ...], remedy: str
) -> None:
    """Raise unless this is a tensor of exactly this shape, so that nothing is broadcast by accident."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{call} got {type(value).__name__} as {name}, expected a tensor of shape {expected}. "
            f"{remedy}"
        )
    if value.shape != expected:
        raise ValueError(
            f"{call} got {name} of shape {tuple(value.shape)}, expected {expected}. {remedy}"
        )


def check_indices(call: str, name: str, value: torch.Tensor, remedy: str) -> torch.Tensor:
    """Return integers as int64; raise for any other type."""
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{call} got {name} of {value.dtype}, expected integers. {remedy}")
    return value.long()


def check_range(call: str, name: str, value: Any, low: float, high: float) -> float:
    """Return a number in [low, high] as a float; raise for anything else."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.floating)
        or not low <= value <= high
    ):
        raise ValueError(f"{call} got {name}={value!r}, expected a number from {low} to {high}.")
    return float(value)
