"""The hardest samples of each batch, without weights: biased, as in published methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from infobatch.checks import check_count
from infobatch.savings import FORWARD, StreamSavings
from infobatch.stream import Kept


class Hardest:
    """Keeps the samples of each batch with the highest scores; each weighs 1.

    Biased: the mean of the kept losses over the size of the whole batch lacks what was left out. Samples
    whose score is NaN are kept. :class:`infobatch.StreamPruner` is the unbiased counterpart, with the same
    methods.

    Args:
        keep: the share of each batch to keep, rounded up to whole samples.
        ramp: the number of batches over which the share that is left out rises linearly from 0 to
            ``1 - keep``; with 0 it is the same from the first batch on.
        forward_cost: what scoring one sample costs, as a share of a training step.

    Raises:
        ValueError: if an argument is out of its range.

    >>> kept = Hardest(keep=0.5).select(torch.tensor([0.1, 2.0, 0.3, 1.0]))
    >>> kept.index, kept.weights
    (tensor([1, 3]), tensor([1., 1.]))
    """

    def __init__(self, keep: float = 0.5, *, ramp: int = 0, forward_cost: float = FORWARD) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
            raise ValueError(
                f"Hardest(keep=…) got {keep!r}, expected the share of each batch to train on, a number above 0 "
                "and at most 1."
            )
        why = "the batches over which the share that is left out rises"
        self.ramp = check_count("Hardest(): ramp", ramp, why, least=0)
        self.keep = float(keep)
        self.forward_cost = forward_cost
        self._batches = self._scored = self._trained = 0

    def select(self, scores: torch.Tensor) -> Kept:
        """Choose what to train on from a batch.

        Args:
            scores: (B,), one number per sample; higher is harder.

        Returns:
            The kept samples in ascending order, each with weight 1.

        Raises:
            ValueError: if the scores are not a 1-D tensor with at least one entry.
        """
        if scores.dim() != 1 or not len(scores):
            raise ValueError(
                f"Hardest.select() got scores of shape {tuple(scores.shape)}, expected one score per sample: a 1-D "
                "tensor."
            )
        size = len(scores)
        ramped = min(self._batches / self.ramp, 1.0) if self.ramp else 1.0
        left_out = int(ramped * (1 - self.keep) * size)
        index = scores.detach().topk(size - left_out).indices.sort().values
        self._batches += 1
        self._scored += size
        self._trained += len(index)
        return Kept(index, torch.ones(len(index), device=scores.device), size)

    @property
    def savings(self) -> StreamSavings:
        """The passes so far, including those for scoring."""
        return StreamSavings(self._scored, self._trained, 0, self.forward_cost)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {"batches": self._batches, "scored": self._scored, "trained": self._trained}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._batches, self._scored, self._trained = (
            state[name] for name in ("batches", "scored", "trained")
        )
