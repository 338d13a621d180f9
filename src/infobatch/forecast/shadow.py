"""Shadows: rules that are followed beside a training on all data, without pruning anything.

A shadow is a pruned run that takes its losses from the run on all data. It draws the plan that its
rule would have drawn, from its own memory, and only the samples of that plan reach this memory: the
others keep their old scores, as they would have. So the share left out, the noise promised and the
noise realised are those of a real pruned run with these losses. What differs is the model, which has
seen all data.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from infobatch.distributed.ranks import Ranks
from infobatch.forecast.law import Forecast, RuleForecast
from infobatch.forecast.realised import realised_noise, sums_of
from infobatch.memory.memory import Memory
from infobatch.memory.state import ShadowState
from infobatch.plan import FloatArray
from infobatch.policies.assumptions import ScoresError
from infobatch.policies.none import NoPrune
from infobatch.policies.options import name_of
from infobatch.policies.planning import Planner
from infobatch.savings import EpochPasses
from infobatch.step.losses import Losses

_BLOCK = 1 << 16  # samples at a time, so that temporaries stay in the CPU cache


class TrainedEpoch(Protocol):
    """An epoch that was trained on all data, as a shadow sees it."""

    epoch: int
    ranks: Ranks
    channels: Sequence[str]

    @property
    def losses(self) -> Losses | None:
        """What it has recorded, if anything."""
        ...


class Shadow:
    """A rule, what it would remember, and the record of its epochs.

    A rule that these losses are not for is no longer followed, and has no record: the training on all
    data goes on.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.history: list[EpochPasses] = []
        self.seconds = 0.0  # of the processor, in this process
        self.is_followed = True
        self._memory: Memory | None = None

    def follow(self, run: TrainedEpoch, seed: int) -> None:
        """Record an epoch that was trained on all data. Collective if the scores are sharded."""
        began = time.thread_time()
        if run.losses is not None and self.is_followed:
            try:
                self._record(run, run.losses, seed)
            except ScoresError as error:  # on every rank
                self.is_followed = False
                self.history = []
                warnings.warn(
                    f"{error} Until then it is not followed, and has no forecast.", stacklevel=2
                )
        self.seconds += time.thread_time() - began

    def _record(self, run: TrainedEpoch, recorded: Losses, seed: int) -> None:
        ranks, memory = run.ranks, self._current_memory(run.ranks)
        plan = self.planner.draw(memory, ranks, self.history, epoch=run.epoch, seed=seed)
        losses = by_row(recorded, len(memory))
        kept = plan.kept()
        unscored = len(plan) - int(np.count_nonzero(kept & (losses == losses)))  # noqa: PLR0124
        row, sizing = self.planner.measured_by(recorded.known(), run.channels)
        measure = by_row(recorded, len(memory), row) if row else losses
        counts = np.array([len(plan), unscored, *sums_of(plan, measure, sizing)])
        if ranks.sharded:
            counts = ranks.communicator.sum(counts)
        planned, unscored, full = int(counts[0]), int(counts[1]), self.planner.num_samples
        # A rule that forwards what it leaves out knows all losses.
        refreshed = full - planned if self.planner.policy.refreshes else 0
        if refreshed:
            kept[:] = True
        memory.fold(_visits(losses, kept), run.epoch)
        for channel in self.planner.channels:
            values = by_row(recorded, len(memory), 1 + run.channels.index(channel))
            memory.fold(_visits(values, kept), run.epoch, channel)
        noise = None if plan.biased else realised_noise(counts[2:])
        self.history.append(
            EpochPasses(
                run.epoch,
                full,
                planned,
                planned,
                unscored,
                plan.thresholds,
                plan.added_noise,
                plan.kept_cost,
                refreshed,
                0.0 if not refreshed else 1 - (plan.kept_cost or planned / full),
                noise,
            )
        )

    def _current_memory(self, ranks: Ranks) -> Memory:
        if self._memory is None or len(self._memory) != ranks.owned(self.planner.num_samples):
            self._memory = self.planner.new_memory(ranks)
        return self._memory

    def as_if_over(self, run: TrainedEpoch, seed: int) -> Shadow:
        """What this shadow would be if the running epoch ended here."""
        twin = Shadow(self.planner)
        twin.history, twin._memory = list(self.history), self._current_memory(run.ranks).copy()
        twin.is_followed = self.is_followed
        if not run.ranks.sharded:  # the other ranks would have to take part
            twin.follow(run, seed)
        return twin

    def state(self, ranks: Ranks) -> ShadowState:
        """What a checkpoint needs."""
        columns = self._current_memory(ranks).copy().columns
        return ShadowState(columns, tuple(self.history))

    def load(self, state: ShadowState, ranks: Ranks) -> None:
        """Continue from a checkpoint."""
        self._memory = self.planner.new_memory(ranks)
        self._memory.restore({name: column.copy() for name, column in state.columns.items()})
        self.history = list(state.history)


def by_row(losses: Losses, count: int, channel: int = 0) -> FloatArray:
    """An epoch's losses, one per row of the memory, NaN where there is none."""
    dense = np.full(count, np.nan, np.float32)
    for rows, values in losses.blocks(channel):
        dense[rows] = values
    return dense


def _visits(
    losses: FloatArray, kept: npt.NDArray[np.bool_]
) -> Iterator[tuple[npt.NDArray[np.intp], FloatArray]]:
    """The finite losses of the rows that are kept."""
    for start in range(0, len(losses), _BLOCK):
        block = losses[start : start + _BLOCK]
        seen = np.flatnonzero(kept[start : start + _BLOCK] & (block == block))  # noqa: PLR0124
        yield start + seen, block[seen]


def forecast_of(
    planner: Planner, history: Sequence[EpochPasses], shadows: Mapping[str, Shadow], epoch: int
) -> Forecast:
    """What the shadows would save, or without any what a run's own rule does, from ``epoch`` on."""
    rules = {
        name: (shadow.planner, shadow.history, shadow.is_followed)
        for name, shadow in shadows.items()
    }
    if not rules and not isinstance(planner.policy, NoPrune):
        rules = {name_of(planner.options): (planner, list(history), True)}
    if not rules:
        raise RuntimeError(
            'forecast() was called where policy="none" prunes nothing and no rule is followed. '
            'Expected rules to forecast: InfoBatch(…, policy="none", shadow=("auto", "mean")).'
        )
    forecasts = {}
    for name, (rule, epochs, is_followed) in rules.items():
        start = epochs[-1].epoch + 1 if epochs else epoch
        forecasts[name] = RuleForecast(
            tuple(epochs),
            rule.prunable(start),
            rule.num_epochs,
            doubtful=rule.doubts_sizes,
            is_followed=is_followed,
        )
    seconds = sum(shadow.seconds for shadow in shadows.values())
    return Forecast(forecasts, shadows=bool(shadows), seconds=seconds)
