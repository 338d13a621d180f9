"""A small network that looks at each batch first: scores of the same augmented views, at a fraction of the cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from infobatch.checks import check_count
from infobatch.experimental.hardest import Hardest
from infobatch.per_sample import PerSample
from infobatch.savings import FORWARD, StreamSavings
from infobatch.stream import Kept, StreamPruner


class Proxy:
    """A small network that scores each batch, and learns from every ``every``-th one.

    After airbench96_faster (Keller Jordan, 2024), where such a network keeps the hardest half of every
    batch, without weights: ``Proxy(…, Hardest(keep=0.5))``. With a :class:`infobatch.StreamPruner` in its
    place, the network's expected gradient is that of the whole batch.

    The proxy learns from the samples that it keeps, with the same weights, as in that script. It takes no step
    if their loss is not finite. Its cost is counted in training steps of the network: ``cost`` for a step of its
    own, a third of that for a batch that it only scores.

    Args:
        model: the small network.
        optimizer: the one of its parameters; its schedule is yours to step.
        pruner: chooses from the scores.
        cost: what a training step of the proxy costs, as a share of one of the network; see
            :func:`infobatch.experimental.flops.forward_flops`.
        every: the proxy learns from each batch whose number, counted from 0, this divides.

    Raises:
        ValueError: if ``cost`` is not a number from 0 on, or ``every`` not a positive integer.

    In a loop: ``kept = proxy.select(lambda model: criterion(model(x), y))``, then a step of the network on
    ``kept.mean(criterion(network(x[kept.index]), y[kept.index]))``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        pruner: StreamPruner | Hardest,
        *,
        cost: float,
        every: int = 4,
    ) -> None:
        if (
            isinstance(cost, bool)
            or not isinstance(cost, int | float)
            or not 0 <= cost < float("inf")
        ):
            raise ValueError(
                f"Proxy(cost=…) got {cost!r}, expected what a training step of the proxy costs as a share of one of "
                "the network, such as 0.05."
            )
        self.model, self.optimizer, self.pruner = model, optimizer, pruner
        self.cost = float(cost)
        self.every = check_count(
            "Proxy(): every", every, "the proxy learns from one batch in so many"
        )
        self._batches = 0
        self._learned = 0  # samples in batches that it learned from

    @property
    def learns(self) -> bool:
        """Whether it will learn from the next batch."""
        return self._batches % self.every == 0

    def select(self, losses: Callable[[nn.Module], torch.Tensor | PerSample]) -> Kept:
        """Choose what to train on from a batch.

        Args:
            losses: called once with the proxy; returns one loss per sample of the batch, and by a
                ``PerSample`` also what the samples are chosen by.

        Returns:
            The kept samples and their weights.
        """
        with torch.set_grad_enabled(self.learns):
            result = losses(self.model)
        per_sample, scores = result if isinstance(result, PerSample) else (result, result)
        kept = self.pruner.select(scores.detach())
        if self.learns:
            self._learn(kept, per_sample)
        self._batches += 1
        return kept

    def _learn(self, kept: Kept, per_sample: torch.Tensor) -> None:
        loss = kept.mean(per_sample[kept.index])
        if not loss.detach().cpu().isfinite():
            return
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._learned += kept.batch_size

    @property
    def savings(self) -> StreamSavings:
        """The passes so far, including those of the proxy."""
        chosen = self.pruner.savings
        learned = self._learned / chosen.scored if chosen.scored else 0.0
        cost = self.cost * (FORWARD + (1 - FORWARD) * learned)
        return StreamSavings(chosen.scored, chosen.trained, chosen.unscored, cost)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here, bit for bit."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "batches": self._batches,
            "learned": self._learned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])
        self._batches, self._learned = state["batches"], state["learned"]
