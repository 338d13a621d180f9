"""The hardest samples of each batch, without weights: biased, as in published methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch

from infobatch.checks import check_count
from infobatch.savings import FORWARD, StreamSavings
from infobatch.stream import Kept


class Hardest:
    """Keeps the samples of each batch with the highest scores, all with the same weight.

    Biased, in both forms that published code has. ``mean_over="batch"``: every weight is 1, so the sum of the
    kept losses is divided by the size of the whole batch; steps become smaller by what was left out.
    ``mean_over="kept"``: the mean loss of the kept samples, as a criterion with ``reduction="mean"`` computes it
    from their outputs; steps stay as large.

    Samples whose score is NaN or infinite come first, because nothing is known about them, and are counted in
    ``savings.unscored``. :class:`infobatch.StreamPruner` is the unbiased counterpart, with the same methods.

    Args:
        keep: the share of each batch to keep, rounded up to whole samples.
        ramp: the number of batches over which the share that is left out rises linearly from 0 to
            ``1 - keep``; with 0 it is the same from the first batch on.
        mean_over: what ``kept.mean()`` divides the sum of the kept losses by, the size of the batch or the number
            of the kept samples.
        forward_cost: what scoring one sample costs, as a share of a training step.

    Raises:
        ValueError: if an argument is out of its range.

    >>> kept = Hardest(keep=0.5).select(torch.tensor([0.1, 2.0, 0.3, 1.0]))
    >>> kept.index, kept.weights
    (tensor([1, 3]), tensor([1., 1.]))
    """

    def __init__(
        self,
        keep: float = 0.5,
        *,
        ramp: int = 0,
        mean_over: Literal["batch", "kept"] = "batch",
        forward_cost: float = FORWARD,
    ) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
            raise ValueError(
                f"Hardest(keep=…) got {keep!r}, expected the share of each batch to train on, a number above 0 "
                "and at most 1."
            )
        if mean_over not in ("batch", "kept"):
            raise ValueError(
                f"Hardest(mean_over=…) got {mean_over!r}, expected 'batch' or 'kept': what the sum of the kept losses is "
                "divided by."
            )
        why = "the batches over which the share that is left out rises"
        self.ramp = check_count("Hardest(): ramp", ramp, why, least=0)
        self.keep, self.mean_over = float(keep), mean_over
        self.forward_cost = forward_cost
        self._batches = self._scored = self._trained = 0
        self._unscored: int | torch.Tensor = 0  # counted on the device

    def select(self, scores: torch.Tensor) -> Kept:
        """Choose what to train on from a batch.

        Args:
            scores: (B,), one number per sample; higher is harder.

        Returns:
            The kept samples in ascending order.

        Raises:
            ValueError: if the scores are not a 1-D tensor with at least one entry.
        """
        if scores.dim() != 1 or not len(scores):
            raise ValueError(
                f"Hardest.select() got scores of shape {tuple(scores.shape)}, expected one score per sample: a 1-D "
                "tensor."
            )
        size = len(scores)
        unusable = scores.detach().isfinite().logical_not()
        ranked = scores.detach().masked_fill(unusable, torch.inf)
        index = ranked.topk(self._count(size)).indices.sort().values
        self._batches += 1
        self._scored += size
        self._trained += len(index)
        self._unscored = unusable.sum() + self._unscored
        weight = 1.0 if self.mean_over == "batch" else size / len(index)
        return Kept(index, torch.full((len(index),), weight, device=scores.device), size)

    def _count(self, size: int) -> int:
        """How many samples of the next batch are kept."""
        ramped = min(self._batches / self.ramp, 1.0) if self.ramp else 1.0
        share = 1 - ramped * (1 - self.keep)
        # Rounded first: 0.8 of 10 are 8, whatever floats make of it.
        return max(math.ceil(round(share * size, 9)), 1)

    @property
    def savings(self) -> StreamSavings:
        """The passes so far, including those for scoring; reading it waits for the device."""
        return StreamSavings(self._scored, self._trained, self._count_unscored(), self.forward_cost)

    def _count_unscored(self) -> int:
        counted = self._unscored
        return counted if isinstance(counted, int) else int(counted.cpu())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {
            "batches": self._batches,
            "scored": self._scored,
            "trained": self._trained,
            "unscored": self._count_unscored(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._batches, self._scored, self._trained, self._unscored = (
            state[name] for name in ("batches", "scored", "trained", "unscored")
        )
