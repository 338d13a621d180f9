"""The result of a task's scoring function, which ``update`` accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

Sizes = Callable[[], torch.Tensor]
NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})
GRADIENT = "gradient"  # in extras: the sizes of the samples' gradients


class Measured(Mapping[str, torch.Tensor]):
    """The sizes of gradients among extras, computed when a rule asks for them."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def __getitem__(self, name: str) -> torch.Tensor:
        if name != GRADIENT:
            raise KeyError(name)
        with torch.no_grad():
            return self._sizes()

    def __iter__(self) -> Iterator[str]:
        return iter((GRADIENT,))

    def __len__(self) -> int:
        return 1


class _LossesAndScores(NamedTuple):
    losses: torch.Tensor
    scores: torch.Tensor


class PerSample(_LossesAndScores):
    """One loss and one score per sample; unpacks as ``losses, scores``.

    Args:
        losses: 1-D and differentiable; their plain mean is the batch loss that you would train with.
        scores: how much each sample still has to teach, independently of the rest of the batch.
        extras: further values per sample, by name, for policies that need more than a score, such as
            ``{"confidence": …}``. The one named ``"gradient"`` is the size of each sample's gradient, up
            to a factor that all samples share: rules that keep samples in proportion to it (``"auto"``,
            ``"noise"``, ``"importance"``) use it instead of what they would derive from the score.
    """

    extras: Mapping[str, torch.Tensor]

    def __new__(
        cls,
        losses: torch.Tensor,
        scores: torch.Tensor,
        extras: Mapping[str, torch.Tensor] = NOTHING,
    ) -> PerSample:
        """Create a pair with one more attribute."""
        pair = super().__new__(cls, losses, scores)
        pair.extras = extras
        return pair
