"""Training steps: which samples of a batch are trained on, and what that costs.

Most arms train on every sample of a batch, because the epoch's plan has already left out the
others. The arms ``stream`` and ``proxy`` score the whole batch first, and train on a part of it;
``blocking`` leaves samples out after a layer of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from infobatch import InfoBatch, PerSample, Probe, StreamPruner
from infobatch.experimental.blocking import Blocking, PredictedSizes
from infobatch.experimental.hardest import Hardest
from infobatch.experimental.proxy import Proxy
from infobatch.lab.run.data import part_of
from infobatch.lab.run.result import rounded
from infobatch.lab.run.schedule import EndingSchedule
from infobatch.per_sample import GRADIENT
from infobatch.policies.baselines.afss import MEASURED_EVERY, QUALITY
from infobatch.savings import FORWARD, StreamSavings
from infobatch.stream import Kept

Losses = Callable[[nn.Module, Any], torch.Tensor | PerSample]
Overhead = Callable[[], AbstractContextManager[None]]


class Chooser(Protocol):
    """Chooses what to train on from each batch, and counts what that costs."""

    @property
    def savings(self) -> StreamSavings:
        """What was scored and trained on so far."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""


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
        loss = (weights * samples.rescaled(weights)).mean()
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


class PartialSteps(Steps):
    """Steps on a part of each batch, which ``chooser`` chooses; every epoch of ``data`` is whole."""

    def __init__(
        self, data: InfoBatch, losses: Losses, overhead: Overhead, chooser: Chooser
    ) -> None:
        super().__init__(data, losses, overhead)
        self._chooser = chooser
        self._scored = self._trained = self._choosing = 0

    def _step(self, kept: Kept, losses: torch.Tensor) -> Step:
        """Count the cost of a step on the kept samples, and of choosing them."""
        size, trained = kept.batch_size, len(kept)
        self._scored += size
        self._trained += trained
        before = self._choosing
        self._choosing = self._passes_to_choose()
        forwarded = self._choosing - before + trained
        return Step(kept.mean(losses), size, forwarded=forwarded, backpropagated=trained)

    def _passes_to_choose(self) -> int:
        """The cost of choosing so far, so that the sum is rounded once."""
        so_far = self._chooser.savings
        return round(so_far.scored * so_far.forward_cost)

    def _record(self, kept: Kept, whole: PerSample) -> None:
        """Count the visits: the batches of a whole epoch follow its plan in order."""
        place = self._scored % len(self.visits)
        rows = self._data.plan.order[place : place + kept.batch_size]
        self.visits[rows[kept.index.cpu()].numpy()] += 1
        self._data.update(whole)  # which may end the epoch

    def savings(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The share that was trained on, and the saved passes, negative if it did not pay."""
        trained = self._trained - sum(epoch["samples"] for epoch in history)
        return {
            "kept_fraction": rounded(trained / self._data.savings.epochs[-1].made),
            "samples": trained,
            "samples_saved": self._scored - self._choosing - self._trained,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the chooser with the visits."""
        return {**super().state_dict(), "chooser": self._chooser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the choices that come next."""
        super().load_state_dict(state)
        self._chooser.load_state_dict(state["chooser"])
        so_far = self._chooser.savings
        self._scored, self._trained = so_far.scored, so_far.trained
        self._choosing = self._passes_to_choose()


class StreamedSteps(PartialSteps):
    """Steps after scoring each batch in a forward pass without gradients.

    The model is in training mode for both passes, as in the loop that docs/few-epochs.md shows.
    """

    _chooser: StreamPruner

    def take(self, model: nn.Module, batch: Any) -> Step:
        """An unbiased estimate of the mean of the batch's losses."""
        with self._overhead():
            with torch.no_grad():
                whole = per_sample(self._losses(model, batch))
            kept = self._chooser.select(whole.scores)
            self._record(kept, whole)
        part = part_of(batch, kept.index, kept.batch_size)
        return self._step(kept, per_sample(self._losses(model, part)).losses)


class ProxiedSteps(PartialSteps):
    """Steps after scoring each batch with a small network, which sees the same augmented samples.

    For tasks whose ``losses`` calls the model once, with one tensor, and changes no labels at random.
    """

    _chooser: Proxy

    def __init__(
        self,
        data: InfoBatch,
        losses: Losses,
        overhead: Overhead,
        proxy: Proxy,
        schedule: EndingSchedule,
    ) -> None:
        super().__init__(data, losses, overhead, proxy)
        self._schedule = schedule
        self._hardest = isinstance(proxy.pruner, Hardest)

    def take(self, model: nn.Module, batch: Any) -> Step:
        """The loss of what the proxy keeps."""
        seen: list[PerSample] = []
        inputs: list[torch.Tensor] = []

        def losses(small: nn.Module) -> PerSample:
            samples = per_sample(self._losses(Recording(small, inputs), batch))
            seen.append(samples)
            by = samples.scores if self._hardest else sizes_of(samples)
            return PerSample(samples.losses, by)

        with self._overhead():
            kept = self._chooser.select(losses)
            self._schedule.step()
            self._record(kept, seen[0])
        rows = inputs[0][kept.index]
        part = part_of(batch, kept.index, kept.batch_size)
        return self._step(kept, per_sample(self._losses(Replaying(model, rows), part)).losses)

    def state_dict(self) -> dict[str, Any]:
        """The state of the proxy's schedule, too."""
        return {**super().state_dict(), "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the proxy's schedule was."""
        super().load_state_dict(state)
        self._schedule.load_state_dict(state["schedule"])


class BlockedSteps(PartialSteps):
    """Steps in which samples are left out after a layer of the model, for models with a row per sample.

    For tasks whose ``losses`` calls the model once, with one tensor, and treats the rows of its output
    independently of one another.
    """

    _chooser: Blocking

    def take(self, model: nn.Module, batch: Any) -> Step:
        """The loss of what is left in."""
        blocking = self._chooser
        whole = per_sample(self._losses(Spread(model, blocking), batch))
        kept = blocking.kept
        losses = whole.losses[kept.index]
        with self._overhead():
            if isinstance(blocking.scorer, PredictedSizes):
                sizes = sizes_of(whole)[kept.index]
                blocking.scorer.learn(blocking.features, sizes, kept.weights)
            known = torch.full_like(whole.losses.detach(), torch.nan)
            known[kept.index] = losses.detach()
            self._record(kept, PerSample(known, known))
        return self._step(kept, losses)


class Spread(nn.Module):
    """A model whose outputs have zeros in the rows of the samples that were left out."""

    def __init__(self, model: nn.Module, blocking: Blocking) -> None:
        super().__init__()
        self.model, self.blocking = model, blocking

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """A row for each input."""
        outputs: torch.Tensor = self.model(inputs)
        rows = outputs.new_zeros((len(inputs), *outputs.shape[1:]))
        return rows.index_copy(0, self.blocking.kept.index, outputs)


class Recording(nn.Module):
    """A model whose inputs are added to a list."""

    def __init__(self, model: nn.Module, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, inputs: torch.Tensor) -> Any:
        """The model's outputs."""
        self.inputs.append(inputs)
        return self.model(inputs)


class Replaying(nn.Module):
    """A model that is given other inputs than it is called with: the same samples, augmented before."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, _: torch.Tensor) -> Any:
        """The model's outputs for the given inputs."""
        return self.model(self.inputs)


def per_sample(losses: torch.Tensor | PerSample) -> PerSample:
    """The result of a task's ``losses()``, with the losses as scores if it has no others."""
    return losses if isinstance(losses, PerSample) else PerSample(losses, losses)


def sizes_of(samples: PerSample) -> torch.Tensor:
    """The sizes of the gradients: those reported, or as for a cross-entropy with one label, as ``auto`` does."""
    if GRADIENT in samples.extras:
        return samples.extras[GRADIENT]
    return -torch.expm1(-samples.scores.detach().clamp(min=0))
