"""What a part of a training costs, in floating-point operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def forward_flops(model: nn.Module, inputs: torch.Tensor) -> int:
    """The operations of a forward pass in evaluation mode, which changes nothing in the model.

    Only those of matrix products and convolutions are counted, as
    :class:`torch.utils.flop_counter.FlopCounterMode` does.

    >>> forward_flops(nn.Linear(3, 5), torch.zeros(2, 3))  # a product and a sum for each weight and sample
    60
    """
    with _evaluating(model), FlopCounterMode(display=False) as counter:
        model(inputs)
    return int(counter.get_total_flops())


def share_before(layer: nn.Module, model: nn.Module, inputs: torch.Tensor) -> float:
    """The share of a forward pass's operations that are made up to and including ``layer``.

    >>> stem, rest = nn.Linear(3, 3), nn.Linear(3, 9)
    >>> share_before(stem, nn.Sequential(stem, rest), torch.zeros(2, 3))
    0.25
    """
    so_far: list[int] = []
    with _evaluating(model), FlopCounterMode(display=False) as counter:

        def note(*_: object) -> None:
            so_far.append(counter.get_total_flops())

        handle = layer.register_forward_hook(note)
        try:
            model(inputs)
        finally:
            handle.remove()
    if not so_far:
        raise ValueError(
            f"share_before() got a layer {type(layer).__name__} that the model's forward pass does not call, expected "
            "one of its layers."
        )
    return so_far[0] / int(counter.get_total_flops())


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and then each module's own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
