"""What an integration with a trainer needs, besides the methods that every user has.

A trainer fixes the length of an epoch before training begins, leaves epochs early, shards batches
and steps schedules; pruned epochs are shorter. The integrations of this library use nothing but the
public interface, to which this module belongs, and so can yours: see the page "Write an integration".

Besides the functions there are three names: ``GRADIENT``, under which ``extras`` have the sizes of
gradients, and for a trainer that follows :class:`~infobatch.policies.AfssPrune` ``QUALITY``, under which
they have the quality of an image's predictions, and ``MEASURED_EVERY``, the epochs from one
measurement to the next. ``Arguments`` are the options of a pruner as keyword arguments, for type checkers.
"""

from __future__ import annotations

from typing import Any

from infobatch.epoch.progress import Progress
from infobatch.epoch.refresh import count_all_forwarded
from infobatch.epoch.sampler import PlanBatchSampler, PlanSampler
from infobatch.files import write_atomically
from infobatch.per_sample import GRADIENT
from infobatch.policies.baselines.afss import MEASURED_EVERY, QUALITY
from infobatch.policies.options import Arguments
from infobatch.pruner import Pruner

__all__ = [
    "GRADIENT",
    "MEASURED_EVERY",
    "QUALITY",
    "Arguments",
    "PlanBatchSampler",
    "PlanSampler",
    "Progress",
    "count_measurement",
    "has_begun",
    "leave_epoch",
    "may_prune",
    "sampler_of",
    "samples_per_epoch",
    "summary",
    "write_atomically",
]


def sampler_of(loader: Any) -> PlanSampler | None:
    """Return the pruner's sampler of a loader, even inside a batch sampler.

    Args:
        loader: a ``DataLoader``, or anything with a ``sampler`` or a ``batch_sampler``.

    Returns:
        The sampler, whose ``pruner`` is the pruner that it belongs to; None if the loader has
        another one.

    >>> import torch
    >>> pruner = Pruner(10, num_epochs=2)
    >>> loader = torch.utils.data.DataLoader(range(10), batch_sampler=pruner.batch_sampler(4))
    >>> sampler_of(loader).pruner is pruner
    True
    """
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, PlanSampler):
            return sampler
    return None


def samples_per_epoch(pruner: Pruner) -> int:
    """Return how many samples a loader of this rank reads in an epoch over all data.

    For the number of steps that a trainer is to plan with: ``len(loader)`` is that of the epoch that
    comes next, which may be pruned. Ranks that do not divide the data evenly read repeats.

    Args:
        pruner: the pruner.

    Returns:
        The number of samples, before any are pruned.
    """
    ranks = pruner._ranks()
    return -(-pruner.num_samples // ranks.walkers)


def may_prune(pruner: Pruner, epoch: int) -> bool:
    """Return whether an epoch may be shorter than one over all data.

    Args:
        pruner: the pruner.
        epoch: the epoch, from 0.

    Returns:
        False during the warm-up and from ``delta * num_epochs`` on.
    """
    return pruner._course.planner.prunes(epoch)


def has_begun(pruner: Pruner) -> bool:
    """Return whether any losses were recorded, or a state was loaded that has some.

    Args:
        pruner: the pruner.

    Returns:
        False for a pruner that is as it was built.
    """
    return not pruner._course.is_fresh


def leave_epoch(pruner: Pruner, batches: int) -> None:
    """Tell the pruner that the trainer leaves this epoch on purpose, before its end.

    Without it, batches that a loader has read ahead near the end of an epoch look like missing
    updates, and a new iterator like a second one in the middle of the epoch.

    Args:
        pruner: the pruner.
        batches: how many batches of this epoch were trained on.
    """
    pruner._course.leave_early(batches)


def count_measurement(pruner: Pruner) -> None:
    """Count a forward pass of every sample, without a step, in the epoch that has just ended.

    For a rule that goes by a measurement of all samples, such as AFSS. Each counts as a third of a pass
    in ``savings``, and those that :meth:`~infobatch.Pruner.refresh` has reported are not counted twice.

    Args:
        pruner: the pruner.
    """
    count_all_forwarded(pruner._course)


def summary(pruner: Pruner) -> str:
    """Return what a trainer prints at the end.

    Args:
        pruner: the pruner.

    Returns:
        One line about the savings; with ``shadow=``, the forecast's table below it.

    >>> print(summary(Pruner(10, num_epochs=2)))
    Saved 0.0% of 0 sample passes (0 made in 0 epochs)
    """
    lines = [str(pruner.savings)]
    if pruner._course.shadows:
        lines.append(str(pruner.forecast()))
    return "\n".join(lines)
