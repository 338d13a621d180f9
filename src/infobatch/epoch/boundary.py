"""The one function that closes an epoch: check, exchange, fold, record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from infobatch.distributed.communicator import Communicator
from infobatch.epoch.matching import left_out, warn_of_left_out, warn_of_sharding
from infobatch.epoch.run import Run
from infobatch.forecast.realised import realised_noise, sums_of
from infobatch.forecast.shadow import Shadow
from infobatch.memory.memory import Memory, Rows
from infobatch.plan import FloatArray, fingerprint
from infobatch.policies.planning import Planner
from infobatch.savings import EpochPasses
from infobatch.step.losses import IndexLosses, Losses, PositionLosses

Blocks = Callable[[int], Iterable[tuple[Rows, FloatArray]]]  # by channel
_KINDS = (None, PositionLosses, IndexLosses)  # ranks exchange which one they have by its number


def close_epoch(
    run: Run, memory: Memory, planner: Planner, shadows: Collection[Shadow], seed: int
) -> EpochPasses | None:
    """Fold an epoch's losses into the memory; return its passes, if any were made. Collective."""
    matched = _check_matching(run)
    losses_to_exchange = agree(run)
    run.updated = run.trained
    losses, parts = run.losses, None
    if isinstance(losses_to_exchange, PositionLosses) and not shadows:
        parts = losses_to_exchange  # while they are folded; shadows need all of them at once
    elif losses_to_exchange is not None:
        losses_to_exchange.exchange()
    noise = _realised_noise(run, planner, parts)
    if losses is not None:
        fold(losses.blocks if parts is None else parts.merged_blocks, memory, run)
    for shadow in shadows:
        shadow.follow(run, seed)
    unscored, visited = run.unscored(), run.visited()
    if run.ranks.sharded:
        counts = np.array([unscored, min(run.updated, len(run.route.shard))], np.float64)
        unscored, visited = (int(total) for total in run.ranks.communicator.sum(counts))
    passes = None
    if run.visited():
        passes = replace(passes_of(run, unscored), realised_noise=noise)
        if matched and unscored and unscored >= visited:
            warn_of_no_scores(run.epoch, visited)
    run.losses = None  # freed before the next plan is drawn
    run.closed = True
    return passes


def _realised_noise(run: Run, planner: Planner, parts: PositionLosses | None) -> float | None:
    """The noise that pruning added, by this epoch's losses.

    Collective if each rank has its own part of them, ``parts`` or because the scores are sharded.
    """
    plan, losses = run.plan, run.losses
    if not run.ranks.sharded and (plan.whole or plan.biased or losses is None):
        return 0.0 if plan.whole else None
    sums = np.zeros(3)
    if losses is not None:
        if parts is not None:
            codes, known = parts.recorded_here()
        else:
            codes, known = plan.codes, losses.known()
        row, sizing = planner.measured_by(known, run.channels)
        sums[:2] = sums_of(plan, known[row], sizing, at=None if run.by_index else codes)
    sums[2] = plan.biased  # ranks may differ in it only where one keeps all of its samples
    if run.ranks.sharded or parts is not None:
        sums = run.ranks.communicator.sum(sums)
    return None if sums[2] else realised_noise(sums[:2])


def agree(run: Run) -> Losses | None:
    """Compare the ranks' plans; return this rank's losses if there are any to exchange. Collective."""
    ranks = run.ranks
    if ranks.share_batches:
        follow_model_group(run)
    if ranks.world_size == 1 or ranks.sharded:
        return None
    kind, _ = _compare(run, ranks.communicator, has_losses=run.losses is not None)
    return None if kind is None else run.losses_of(kind)


def follow_model_group(run: Run) -> None:
    """Make the losses of one rank those of all ranks that share its batches. Collective.

    Those of the first rank in the group that called ``update()`` count. The others may have none, as
    the first stage of a pipeline, or slightly different ones, which would lead to other plans.
    """
    kind, headers = _compare(run, run.ranks.model, has_losses=run.updated > 0)
    if kind is not None:
        source = int(headers[:, 0].argmax())
        run.losses_of(kind).follow(source)
        run.followed, run.largest_batch = headers[source, 1:3].tolist()


def _compare(
    run: Run, group: Communicator, *, has_losses: bool
) -> tuple[type[PositionLosses | IndexLosses] | None, torch.Tensor]:
    """How the ranks of a group have recorded losses, if any has, and their headers. Collective.

    A header has that as a number, 0 for none, then the number of updated samples, the largest batch, the
    rank, and what has to be equal. Raises if ranks contradict each other.
    """
    kind = type(run.losses) if has_losses else None
    header = [_KINDS.index(kind), run.updated, run.largest_batch, run.ranks.rank]
    header += [fingerprint(run.plan), len(run.plan), len(run.route.left)]
    # From where this rank's losses are: an exchange needs its own accelerator, not the first one.
    device = torch.device("cpu") if run.losses is None else run.losses.device
    headers = group.gather(torch.tensor(header, device=device))
    ranks = headers[:, 3].tolist()
    if group is run.ranks.model and set(ranks) != {run.ranks.rank}:
        raise RuntimeError(
            f"The ranks in model_group are the ranks {ranks} of process_group, expected the "
            "same one for all: those in model_group share their batches, those in process_group "
            'divide the data among themselves, for instance mesh["model"] and mesh["data"].'
        )
    if not bool((headers[:, 4:] == headers[0, 4:]).all()):
        raise RuntimeError(
            "The ranks have drawn different plans for this epoch, so their losses cannot be "
            "merged. Expected the same seed, policy, delta, num_epochs and data on each, and "
            "the same state loaded on each."
        )
    forms = set(headers[:, 0].tolist()) - {0}
    if len(forms) > 1:
        raise RuntimeError(
            "Some ranks call update() with index= and others without. Expected one form on all."
        )
    return _KINDS[forms.pop()] if forms else None, headers


def fold(blocks: Blocks, memory: Memory, run: Run) -> None:
    """Fold what the samples of an epoch have reported into a memory, by channel."""
    for number, channel in enumerate((None, *run.channels)):
        memory.fold(blocks(number), run.epoch, channel)


def passes_of(run: Run, unscored: int) -> EpochPasses:
    """The sample passes of an epoch."""
    planned = run.route.planned
    return EpochPasses(
        run.epoch,
        int(run.route.full_counts.sum()),
        planned,
        min(run.visited(), planned),
        unscored,
        run.plan.thresholds,
        run.plan.added_noise,
        run.plan.kept_cost,
    )


def warn_of_first_epoch(epoch: int) -> None:
    """Warn that the epochs before this one never took place."""
    epochs = "1 epoch" if epoch == 1 else f"{epoch} epochs"
    warnings.warn(
        f"The first epoch that was trained is number {epoch}, so this run prunes {epochs} less "
        "than it could. Epochs are counted from 0: call set_epoch(0) before the first one. To "
        "continue an earlier run, load its state_dict() as well.",
        stacklevel=2,
    )


def warn_of_no_scores(epoch: int, visited: int) -> None:
    """Warn that an epoch that was trained on gave no score at all."""
    warnings.warn(
        f"None of the {visited:,} samples of epoch {epoch} got a score: every loss (or score) was NaN or "
        "infinite, or its batch was skipped. Their earlier scores stay, and pruning goes by these. "
        "Has training diverged?",
        stacklevel=2,
    )


def warn_of_more_epochs(epoch: int, num_epochs: int) -> bool:
    """Warn that training goes on after the last epoch that was declared; return True."""
    warnings.warn(
        f"Epoch {epoch} is being trained, but num_epochs={num_epochs}: epochs are counted from 0, and "
        "from the last one on nothing is pruned. Pass the number of epochs that are really trained, so "
        "that pruning stops at the right time; if a loader or batch sampler repeats the epochs by "
        "itself, iterate it again for each epoch.",
        stacklevel=2,
    )
    return True


def warn_of_old_scores(planner: Planner, epoch: int, latest: Sequence[EpochPasses]) -> bool:
    """Warn if a rule needs ``refresh()`` and it was not called; return whether it warned."""
    policy = planner.policy
    if not latest or not policy.refreshes or latest[-1].refreshed:
        return False
    last = latest[-1]
    if not planner.prunes(epoch) or last.planned == last.full:
        return False
    warnings.warn(
        f"refresh() was not called after epoch {last.epoch}, which left out {last.full - last.planned:,} "
        f"of {last.full:,} samples. {policy!r} expects a forward pass over them, without gradients, at the "
        "end of an epoch; otherwise their scores stay old, and samples that were left out may never "
        "return. After each epoch, compute the losses of the samples in left_out under "
        "torch.no_grad() and call refresh(losses, index); docs/policies.md has the loop.",
        stacklevel=2,
    )
    return True


def _check_matching(run: Run) -> bool:
    """Whether losses and samples can be matched; if not, warn and discard the losses."""
    walk = run.walk
    if not walk.has_sampler:
        return True
    if run.by_index:
        if walk.exhausted:
            length, largest = len(run.route), run.largest_batch
            warn_of_sharding(run.epoch, length, run.updated, largest, run.ranks)
        return True
    waiting = left_out(run.updated, run.largest_batch, walk)
    if waiting:
        assert isinstance(run.losses, PositionLosses)
        run.losses.discard()
        warn_of_left_out(run.epoch, waiting)
    return not waiting
