"""Training steps: which samples of a batch are trained on, and what that costs.

Most arms train on every sample of a batch, because the epoch's plan has already left out the
others. The arm ``stream`` scores the whole batch first, and trains on a part of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from infobatch import InfoBatch, PerSample, Probe, StreamPruner
from infobatch.lab.run.data import part_of
from infobatch.lab.run.result import rounded
from infobatch.per_sample import GRADIENT
from infobatch.policies.baselines.afss import MEASURED_EVERY, QUALITY
from infobatch.savings import FORWARD
from infobatch.stream import Kept

Losses = Callable[[nn.Module, Any], torch.Tensor | PerSample]
Overhead = Callable[[], AbstractContextManager[None]]


class Step(NamedTuple):
    """One step, before its backward pass."""

    loss: torch.Tensor  # for backward()
    size: int  # of the batch, as the loader made it
    forwarded: int  # sample passes; a forward pass without gradients counts as a third of one
    backpropagated: int


class Steps(ABC):
    """The steps of a run. ``visits`` counts how often each sample was trained on."""

    def __init__(self, data: InfoBatch, losses: Losses, overhead: Overhead) -> None:
        self._data, self._losses, self._overhead = data, losses, overhead
        self.visits = np.zeros(len(data.scores), np.uint16)

    def begin_epoch(self) -> None:  # noqa: B027 - most have nothing to do
        """Called when the epoch's plan is drawn, but not if a run is resumed within the epoch."""

    @abstractmethod
    def take(self, model: nn.Module, batch: Any) -> Step:
        """The loss of a batch."""

    def after_backward(self) -> None:  # noqa: B027 - most have nothing to do
        """Called between the backward pass and the optimizer's step."""

    def end_epoch(self) -> None:  # noqa: B027 - most have nothing to do
        """Called after the epoch's last step, but not if the run ends within the epoch."""

    @abstractmethod
    def savings(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The record of the epoch that ends, after those in ``history``."""

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs in addition to the data set's."""
        return {"visits": torch.from_numpy(self.visits.astype(np.int32))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.visits = state["visits"].numpy().astype(np.uint16)


class PlannedSteps(Steps):
    """Steps on every sample of a batch: the plan decides what to leave out before the epoch."""

    def begin_epoch(self) -> None:
        """Count the visits of the whole epoch."""
        self.visits[self._data.plan.order.numpy()] += 1

    def take(self, model: nn.Module, batch: Any) -> Step:
        """The weighted mean of the batch's losses."""
        losses = self._losses(model, batch)
        with self._overhead():
            loss = self._data.update(losses)
        size = len(per_sample(losses).losses)
        return Step(loss, size, forwarded=size, backpropagated=size)

    def savings(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The savings of the plan."""
        last = self._data.savings.epochs[-1]
        noise = last.realised_noise
        return {
            "kept_fraction": rounded(last.kept_fraction),
            "added_noise": rounded(last.added_noise),
            "realised_noise": None if noise is None else rounded(noise),
            "samples": last.made,
            "samples_saved": self._data.savings.saved,
        }


class ProbedSteps(PlannedSteps):
    """Steps that prune by the sizes of gradients at one layer, which each backward pass measures."""

    def __init__(self, data: InfoBatch, losses: Losses, overhead: Overhead, probe: Probe) -> None:
        super().__init__(data, losses, overhead)
        self._probe = probe
        self._samples: PerSample | None = None

    def take(self, model: nn.Module, batch: Any) -> Step:
        """The weighted mean of the batch's losses, which are recorded after the backward pass."""
        samples = self._samples = self._probe.watch(per_sample(self._losses(model, batch)))
        with self._overhead():
            weights = self._data.batch_weights(device=samples.losses.device)
        size = len(samples.losses)
        loss = (weights * samples.losses).mean()
        return Step(loss, size, forwarded=size, backpropagated=size)

    def after_backward(self) -> None:
        """Record the losses with the sizes of their gradients."""
        assert self._samples is not None
        with self._overhead():
            self._data.record(self._samples, extras={GRADIENT: self._probe.sizes})


class MeasuredSteps(PlannedSteps):
    """Steps of AFSS: every fifth epoch begins with measuring how good the model is on each sample."""

    def __init__(
        self,
        data: InfoBatch,
        losses: Losses,
        overhead: Overhead,
        measure: Callable[[], torch.Tensor],
    ) -> None:
        super().__init__(data, losses, overhead)
        self._measure = measure
        self._place = self._measured = 0
        self._due = False
        self._quality = torch.full((data.num_samples,), torch.nan)  # which keeps what is known

    def begin_epoch(self) -> None:
        """Measure before the first step, if it is time: not here, where time is not counted."""
        super().begin_epoch()
        self._place = 0
        self._due = self._data.epoch > 0 and self._data.epoch % MEASURED_EVERY == 0
        self._quality.fill_(torch.nan)

    def take(self, model: nn.Module, batch: Any) -> Step:
        """The weighted mean of the batch's losses."""
        measured = 0
        if self._due:
            with self._overhead():
                self._quality, self._due = self._measure(), False
            measured = len(self._quality)
        samples = per_sample(self._losses(model, batch))
        size = len(samples.losses)
        rows = self._data.plan.order[self._place : self._place + size]
        self._place += size
        with self._overhead():
            quality = self._quality[rows].to(samples.losses.device)
            loss = self._data.update(samples, extras={QUALITY: quality})
        before = round(FORWARD * self._measured)
        self._measured += measured
        passes = round(FORWARD * self._measured) - before  # so that the sum is rounded once
        return Step(loss, size, forwarded=size + passes, backpropagated=size)

    def end_epoch(self) -> None:
        """Report what was measured of the samples that the epoch left out; their losses are not known."""
        left_out = self._data.left_out
        if len(left_out) and not self._quality.isnan().all():
            unknown = torch.full((len(left_out),), torch.nan)
            self._data.refresh(unknown, left_out, extras={QUALITY: self._quality[left_out]})

    def state_dict(self) -> dict[str, Any]:
        """The measurement of the epoch with the visits."""
        names = ("_place", "_measured", "_due", "_quality")
        return {**super().state_dict(), **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the measurement of the epoch."""
        super().load_state_dict(state)
        for name in ("_place", "_measured", "_due", "_quality"):
            setattr(self, name, state[name])


class StreamedSteps(Steps):
    """Steps on a part of each batch, after scoring it in a forward pass without gradients.

    Every epoch of ``data`` is whole. The model is in training mode for both passes, as in the loop
    that docs/few-epochs.md shows.
    """

    def __init__(
        self, data: InfoBatch, losses: Losses, overhead: Overhead, pruner: StreamPruner
    ) -> None:
        super().__init__(data, losses, overhead)
        self._pruner = pruner
        self._scored = self._trained = 0

    def take(self, model: nn.Module, batch: Any) -> Step:
        """An unbiased estimate of the mean of the batch's losses."""
        with self._overhead():
            with torch.no_grad():
                whole = per_sample(self._losses(model, batch))
            kept = self._pruner.select(whole.scores)
            self._count_visits(kept)  # before update(), which may end the epoch
            self._data.update(whole)
        size, trained = kept.batch_size, len(kept)
        losses = per_sample(self._losses(model, part_of(batch, kept.index, size))).losses
        before = round(FORWARD * self._scored)
        self._scored += size
        self._trained += trained
        scoring = round(FORWARD * self._scored) - before  # so that the sum is rounded once
        return Step(kept.mean(losses), size, forwarded=scoring + trained, backpropagated=trained)

    def _count_visits(self, kept: Kept) -> None:
        """Count the visits: the batches of a whole epoch follow its plan in order."""
        place = self._scored % len(self.visits)
        rows = self._data.plan.order[place : place + kept.batch_size]
        self.visits[rows[kept.index.cpu()].numpy()] += 1

    def savings(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The share that was trained on, and the saved passes, negative if it did not pay."""
        trained = self._trained - sum(epoch["samples"] for epoch in history)
        return {
            "kept_fraction": rounded(trained / self._data.savings.epochs[-1].made),
            "samples": trained,
            "samples_saved": self._scored - round(FORWARD * self._scored) - self._trained,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the pruner with the visits."""
        return {**super().state_dict(), "pruner": self._pruner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the draws that come next."""
        super().load_state_dict(state)
        self._pruner.load_state_dict(state["pruner"])
        self._scored, self._trained = state["pruner"]["scored"], state["pruner"]["trained"]


def per_sample(losses: torch.Tensor | PerSample) -> PerSample:
    """The result of a task's ``losses()``, with the losses as scores if it has no others."""
    return losses if isinstance(losses, PerSample) else PerSample(losses, losses)
