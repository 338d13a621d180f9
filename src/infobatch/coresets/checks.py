"""Checks of coreset arguments: errors say what was called, what it got and what to do."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

Array = Any  # a tensor, an array, or nested lists of numbers


def as_floats(call: str, name: str, value: Array, *, ndim: tuple[int, ...]) -> torch.Tensor:
    """Return a detached tensor of finite floats with a permitted ``ndim``, or raise an error."""
    values = as_tensor(call, name, value)
    if not values.is_floating_point() or values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if values.dim() not in ndim or 0 in values.shape:
        shapes = " or ".join(f"{count}-D" for count in ndim)
        raise ValueError(
            f"{call} got {name} of shape {tuple(values.shape)}, expected a {shapes} array that is not "
            "empty."
        )
    finite = values.isfinite()
    if not bool(finite.all()):
        place = tuple((~finite).nonzero()[0].tolist())
        raise ValueError(
            f"{call} got {name} with NaN or infinite values, the first at {list(place)}. Expected finite "
            "numbers: a sample without them cannot be ranked. Leave it out, or fix what produced it."
        )
    return values


def as_probabilities(call: str, value: Array) -> torch.Tensor:
    """Return one row of class probabilities per sample, or raise an error."""
    values = as_floats(call, "probabilities", value, ndim=(2,))
    sums = values.sum(1)
    if bool((values < 0).any()) or bool(((sums - 1).abs() > 1e-3).any()):
        raise ValueError(
            f"{call} got probabilities whose rows do not sum to 1, or are negative. Are they logits? "
            "Pass them as logits=…, or apply softmax(1)."
        )
    return values


def as_labels(call: str, value: Array, *, count: int | None = None) -> torch.Tensor:
    """Return one class number per sample, or raise an error."""
    labels = as_tensor(call, "labels", value)
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool)
    if not whole or labels.dim() != 1 or (labels.numel() and int(labels.min()) < 0):
        raise ValueError(
            f"{call} got labels of {labels.dtype} and shape {tuple(labels.shape)}, expected one class "
            "number (0, 1, …) per sample."
        )
    if count is not None and len(labels) != count:
        raise ValueError(
            f"{call} got {len(labels)} labels for {count} samples, expected one per sample."
        )
    return labels.long()


def one_hot(call: str, labels: Array, like: torch.Tensor) -> torch.Tensor:
    """The labels as rows of 0 and 1, in the shape of ``like``: (samples, classes)."""
    numbers = as_labels(call, labels, count=len(like)).to(like.device)
    classes = like.shape[1]
    if int(numbers.max()) >= classes:
        raise ValueError(
            f"{call} got the label {int(numbers.max())} where the outputs have {classes} classes. "
            f"Expected labels from 0 to {classes - 1}."
        )
    return torch.nn.functional.one_hot(numbers, classes).to(like.dtype)


def check_k(call: str, k: Any, count: int) -> int:
    """Return the number of samples to choose, or raise an error."""
    try:
        number = operator.index(k)
    except TypeError:
        number = 0
    if isinstance(k, bool) or not 1 <= number <= count:
        raise ValueError(
            f"{call} got k={k!r}, expected how many of the {count} samples to choose: an integer from "
            f"1 to {count}."
        )
    return number


def check_fraction(call: str, fraction: Any) -> float:
    """Return the share of the samples to choose, or raise an error."""
    if (
        isinstance(fraction, bool)
        or not isinstance(fraction, int | float | np.floating)
        or not 0 < fraction <= 1
    ):
        raise ValueError(
            f"{call} got fraction={fraction!r}, expected the share of the samples to choose, above 0 "
            "and up to 1: 0.3 prunes 70%."
        )
    return float(fraction)


def as_tensor(call: str, name: str, value: Array) -> torch.Tensor:
    """Return a detached tensor, or raise an error for values that are not numbers."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"{call} got {name} as {type(value).__name__}, expected a tensor or an array of numbers."
        ) from None
