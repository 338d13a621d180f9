"""Observing a network's last layer: its inputs are the features, its outputs the logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Seen:
    """The recorded inputs and outputs of the last layer."""

    def __init__(self) -> None:
        self._features: list[torch.Tensor] = []
        self._logits: list[torch.Tensor] = []

    def add(self, features: torch.Tensor | None, logits: torch.Tensor) -> None:
        """Record one forward pass."""
        if features is not None:
            self._features.append(features.detach().float())
        self._logits.append(logits.detach().float())

    def features(self, count: int) -> torch.Tensor:
        """The inputs of the last layer for ``count`` samples, on the CPU."""
        return _rows(self._features, count)

    def logits(self, count: int) -> torch.Tensor:
        """The outputs of the last layer for ``count`` samples, on the CPU."""
        return _rows(self._logits, count)


def _rows(parts: list[torch.Tensor], count: int) -> torch.Tensor:
    rows = torch.cat(parts).cpu() if parts else torch.zeros(0, 0)
    if rows.dim() != 2 or len(rows) != count:
        raise ValueError(
            f"proxy() saw values of shape {tuple(rows.shape)} at the last linear layer for {count} samples, "
            "expected one row per sample. A proxy is for classification; if the logits come from another "
            "layer, name it with head=…."
        )
    return rows


@contextmanager
def watching(model: nn.Module, head: str | None, *, features: bool) -> Iterator[Seen]:
    """Record the last layer's outputs, and with ``features`` its inputs, within the context."""
    seen = Seen()

    def note(_: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        seen.add(inputs[0] if features else None, output)

    hook = find_head(model, head).register_forward_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def find_head(model: nn.Module, head: str | None) -> nn.Module:
    """The layer with this name, or the last linear one."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if head is not None:
        if head not in modules:
            raise ValueError(
                f"proxy(head=…) got {head!r}, which the model does not have. Its linear layers are "
                f"{[name for name, layer in modules.items() if isinstance(layer, nn.Linear)]}."
            )
        return modules[head]
    linear = [module for module in modules.values() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            "proxy() got a model without a linear layer, whose input would be the features. Name the "
            "layer that returns the logits with head=…."
        )
    return linear[-1]
