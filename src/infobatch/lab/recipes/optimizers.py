"""The optimizers that the image recipes offer by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

Build = Callable[[list[dict[str, object]], float], torch.optim.Optimizer]


class Choice(NamedTuple):
    """An optimizer: how it is built, and the learning rate that suits it here."""

    build: Build
    learning_rate: float
    weight_decay: float


def _sgd(groups: list[dict[str, object]], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, learning_rate, momentum=0.9, nesterov=True)


def _adamw(groups: list[dict[str, object]], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, learning_rate)


def _lars(groups: list[dict[str, object]], learning_rate: float) -> torch.optim.Optimizer:
    from pytorch_optimizer import LARS  # noqa: PLC0415 - only two optimizers need the package

    # Biases and normalisation layers use the learning rate unscaled, so it is of SGD's size, and
    # the share of a matrix's norm that a step may move is set here.
    return LARS(groups, learning_rate, momentum=0.9, trust_coefficient=0.02)


def _lamb(groups: list[dict[str, object]], learning_rate: float) -> torch.optim.Optimizer:
    from pytorch_optimizer import Lamb  # noqa: PLC0415 - as above

    return Lamb(groups, learning_rate)


OPTIMIZERS = {
    "sgd": Choice(_sgd, 0.1, 5e-4),
    "adamw": Choice(_adamw, 4e-3, 0.05),
    "lars": Choice(_lars, 0.2, 5e-4),
    "lamb": Choice(_lamb, 0.01, 0.01),
}


def build_optimizer(name: str, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Build an optimizer without weight decay of biases and normalisation layers."""
    choice = OPTIMIZERS[name]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() > 1]
    vectors = [parameter for parameter in trained if parameter.dim() <= 1]
    groups: list[dict[str, object]] = [
        {"params": matrices, "weight_decay": choice.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    try:
        return choice.build(groups, learning_rate)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"optimizer={name!r} needs the package {error.name!r}, which is not installed. Run "
            "pip install '.[recipes]' in a clone of infobatch, or use sgd or adamw."
        ) from error
