"""Refreshing the scores of left-out samples between epochs, without training on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from infobatch import checks
from infobatch.epoch import boundary
from infobatch.epoch.course import Course
from infobatch.epoch.run import Run
from infobatch.per_sample import PerSample
from infobatch.step.losses import IndexLosses, was_visited

_COLLECTIVE = (
    "With several ranks it is collective: call it once after each epoch, on every rank, with all the "
    "samples that the rank refreshes, for instance left_out[rank::world_size], and with empty "
    "tensors where a rank has none."
)


def samples_left_out(course: Course) -> torch.Tensor:
    """The samples that the running epoch leaves out, or that the last one has and whose scores are old."""
    run = course.planned_run
    if run is None:
        raise RuntimeError(
            f"left_out was read before epoch {course.clock.epoch} began, so it is not yet known what "
            "it leaves out. Expected it while the epoch is iterated, or after its last update(); "
            "to have the epoch drawn now, read train_data.plan first."
        )
    rows = np.flatnonzero(run.old_scores)
    return torch.from_numpy(run.plan.shard.first + run.plan.shard.step * rows.astype(np.int64))


def refresh_scores(
    course: Course,
    losses: torch.Tensor | PerSample,
    index: torch.Tensor,
    scores: torch.Tensor | None,
    extras: Mapping[str, torch.Tensor] | None,
) -> None:
    """Check the losses, exchange them with the other ranks, and fold them into the memory."""
    planner = course.planner
    extras_by_channel = checks.check_extras(
        "refresh", losses, extras, planner.channels, planner.policy
    )
    run, rows, values = _checked(course, losses, index, scores)
    recorded = IndexLosses(1 + len(extras_by_channel), run.route)
    on_host = [None if values is None else values.cpu() for values in extras_by_channel]
    recorded.record(rows, [values.detach().cpu(), *on_host])
    if run.ranks.world_size > 1:
        run.ranks.communicator.meet("refresh()", _COLLECTIVE)
        if not run.ranks.sharded:
            recorded.exchange()
    boundary.fold(recorded.blocks, course.current_memory(), run)
    refreshed = was_visited(recorded.known()[0])
    run.old_scores[refreshed] = False
    _count(course, run, refreshed)


def _checked(
    course: Course,
    losses: torch.Tensor | PerSample,
    index: torch.Tensor,
    scores: torch.Tensor | None,
) -> tuple[Run, torch.Tensor, torch.Tensor]:
    """The finished epoch, and the rows and scores to record, or an error."""
    if isinstance(losses, PerSample):
        scores = losses.scores if scores is None else scores
        losses = losses.losses
    if course.find_ranks().share_batches:
        raise RuntimeError(
            "refresh() got a pruner with model_group=, expected one without: an epoch then ends at the next "
            "set_epoch(), so there is no time between epochs. Use a rule that does not refresh."
        )
    run = course.finished_run
    if run is None:
        raise RuntimeError(
            f"refresh() was called in epoch {course.clock.epoch}, which has not ended. "
            "Expected it after the epoch's last update() and before the next epoch is iterated or "
            "set_epoch() is called: scores stay as they are during an epoch."
        )
    if not (isinstance(losses, torch.Tensor) and losses.shape == (0,)):  # nothing was left out
        checks.check_losses("refresh()", losses)
    values = losses if scores is None else scores
    checks.check_scores(values, losses, call="refresh")
    samples = checks.check_index("refresh", index, losses).cpu()
    return run, _rows(run, samples), values


def _rows(run: Run, samples: torch.Tensor) -> torch.Tensor:
    """The rows of samples, or an error if the epoch has not left one of them out."""
    first, step = run.plan.shard
    waiting = torch.from_numpy(run.old_scores)
    rows = (samples - first) // step
    fits = ((samples - first) % step == 0) & (rows >= 0) & (rows < len(waiting))
    fits[fits.clone()] = waiting[rows[fits]]
    if not fits.all():
        wrong = samples[~fits].tolist()
        raise ValueError(
            f"refresh(index=…) got sample {wrong[0]}"
            + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
            + f", expected samples that epoch {run.epoch} has left out and that were not refreshed "
            "yet: those of left_out."
        )
    return rows


def count_all_forwarded(course: Course) -> None:
    """Count a forward pass of every sample in the last epoch, those that refreshed scores included."""
    last = course.history[-1]
    course.history[-1] = replace(last, refreshed=last.full, refreshed_cost=1.0)


def _count(course: Course, run: Run, refreshed: npt.NDArray[np.bool_]) -> None:
    """Add the forward passes to the epoch's record."""
    ranks = run.ranks
    last, count = course.history[-1], refreshed.sum()
    cost = course.planner.cost
    spent = np.array([count, count, last.full], np.float64)
    if cost is not None:
        costs = cost[run.plan.shard.first :: run.plan.shard.step]
        spent[1:] = np.sum(costs[refreshed], dtype=np.float64), np.sum(costs, dtype=np.float64)
    if ranks.sharded and ranks.world_size > 1:
        full = spent[2]
        spent = ranks.communicator.sum(spent)
        spent[2] = full if cost is None else spent[2]
    course.history[-1] = replace(
        last,
        refreshed=last.refreshed + int(spent[0]),
        refreshed_cost=last.refreshed_cost + float(spent[1] / spent[2]),
    )
