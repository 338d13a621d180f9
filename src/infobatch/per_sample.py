"""The result of a task's scoring function, which ``update`` accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch

from infobatch.transfer import send

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
        counts: what each sample adds to the number that the batch's loss is divided by, if that is not
            the number of samples: its tokens, its pixels, its target scores. A common factor does not
            matter. A pruned epoch keeps other samples than an average batch has, so that number is
            itself to be weighted; :meth:`rescaled` does that.
        parts: parts of the losses that are divided by other numbers: pairs of what a part contributes to
            ``losses``, and its counts. The rest of ``losses`` has the counts above.
    """

    extras: Mapping[str, torch.Tensor]
    counts: torch.Tensor | None
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]]

    def __new__(
        cls,
        losses: torch.Tensor,
        scores: torch.Tensor,
        extras: Mapping[str, torch.Tensor] = NOTHING,
        counts: torch.Tensor | None = None,
        parts: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> PerSample:
        """Create a pair with more attributes."""
        pair = super().__new__(cls, losses, scores)
        pair.extras, pair.counts, pair.parts = extras, counts, parts
        return pair

    def rescaled(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the losses as they are to be multiplied by a batch's weights.

        A batch's loss is a sum over its samples, divided by the sum of their counts. To estimate that of all
        data from weighted samples, the divisor has to be an estimate, too: the weighted mean of the counts,
        sum(weights * counts) / sum(weights), instead of the plain one. :meth:`infobatch.Pruner.update` does
        this by itself; a loop that gets its weights from :meth:`infobatch.Pruner.batch_weights` computes
        ``(weights * samples.rescaled(weights)).mean()``.

        Args:
            weights: one per sample; only their ratios matter here.

        Returns:
            One loss per sample, with gradient; unchanged without ``counts``.

        >>> samples = PerSample(torch.ones(2), torch.ones(2), counts=torch.tensor([1.0, 3.0]))
        >>> samples.rescaled(torch.tensor([3.0, 1.0]))  # 2 instead of (3 * 1 + 1 * 3) / 4 = 1.5
        tensor([1.3333, 1.3333])
        """
        if self.counts is None:
            return self.losses
        factor = _correction(self.counts, weights)
        losses = self.losses * factor
        for part, counts in self.parts:
            losses = losses + part * (_correction(counts, weights) - factor)
        return losses


def _correction(counts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The mean of the counts over their weighted mean; 1 if nothing counts."""
    counts = send(counts.detach(), weights.device, weights.dtype)
    # Not a dot product: if all counts are 1, the two sums have the same bits.
    quotient = counts.mean() * weights.sum() / (counts * weights).sum()
    return quotient.nan_to_num(nan=1, posinf=1)
