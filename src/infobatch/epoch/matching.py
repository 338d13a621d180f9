"""Matching losses to samples by counting, as the three-line form does.

The sampler runs in the main process and torch returns batches in order, so the k-th loss belongs to
position k. The checks here ensure that a wrong match does not go unnoticed, also after a resume.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from infobatch.distributed.ranks import Ranks
from infobatch.epoch.clock import Clock
from infobatch.epoch.walk import Walk
from infobatch.loaders.asking import AskingLoader


def check_claim(call: str, count: int, updated: int, walk: Walk) -> None:
    """Raise if the counts do not allow losses for the next ``count`` positions."""
    waiting = walk.issued - updated
    if count > waiting:
        raise RuntimeError(
            f"{call} got {count} samples, but only {waiting} that the sampler issued are waiting for "
            "an update. Expected one update for each batch, of the loader that was built with this "
            "sampler. For a second forward pass on the same batch, use reweight()."
        )
    most = walk.most_waiting(updated)
    if waiting > most and call != "skip()":  # skip() is how a user corrects it
        raise RuntimeError(
            f"{call} found {waiting} samples waiting for an update, but the loader reads ahead by at "
            f"most {most}: {waiting - most} got no update, so the losses can no longer be matched "
            "to samples. If a batch was left out, call skip() for it; if a collate function drops "
            "samples or batches vary in size, carry the index in the batch (Pruner, Indexed, "
            "with_index)."
        )


def check_endless(
    last_pass: AskingLoader | None, new_pass: AskingLoader | None, epoch: int
) -> None:
    """Raise if a loader never ends its sampler's iterator: it has no epochs."""
    if last_pass is not None and new_pass is not None and last_pass.is_same_pass(new_pass):
        raise RuntimeError(
            f"The loader took all of epoch {epoch} and began the next one within the "
            "same iteration, as loaders with an infinite sampler do, so its epochs and the pruned "
            "ones would get out of step. Expected a loader that is iterated again for each epoch, "
            "such as torch's DataLoader; persistent_workers=True keeps its workers alive."
        )


def check_data_length(walk: Walk, num_samples: int) -> None:
    """Raise if the loader reads other data than the pruner's, or the data has grown."""
    length = None if walk.loader is None else walk.loader.data_length
    if walk.loader is not None and length is not None and length != num_samples:
        raise RuntimeError(
            f"The loader reads {length} samples ({walk.loader.data_kind}), but its sampler was built "
            f"for {num_samples}. Expected the same data, of the same size in every epoch: scores belong "
            "to samples. Split or extend the data first and build the InfoBatch (or Pruner) from the "
            "part that is trained on; initial_scores= carries known scores over."
        )


def rest_of_batch(call: str, updated: int, walk: Walk) -> int:
    """How many samples of the current batch have no update yet, or an error if that is unknown."""
    if walk.issued <= updated:
        raise RuntimeError(
            f"{call} found no batch that waits for its losses: all samples that the sampler has issued "
            "were updated or skipped. Expected it after the loader has delivered a batch, and "
            "before the batch's update."
        )
    if walk.batches is not None:
        return walk.batches.end(updated) - updated
    if not walk.asked_by_batch:
        raise RuntimeError(
            f"{call} cannot tell the size of the batch from this loader. Expected skip(count) with "
            "the number of its samples, or a loader with batch_sampler=train_data.batch_sampler(…)."
        )
    return walk.issued - updated


def left_out(updated: int, largest_batch: int, walk: Walk) -> int:
    """How many samples of a finished epoch were delivered but never updated.

    A missing update that counting could not detect, before the epoch's first update or near its
    end, shows only now.
    """
    waiting = walk.to_issue - updated
    if walk.left_after_update or not updated or not walk.exhausted or waiting <= 0:
        return 0
    if not walk.asked_by_batch and waiting < largest_batch:
        return 0  # another kind of loader, which may well have dropped an incomplete last batch
    return waiting


def warn_of_left_out(epoch: int, waiting: int) -> None:
    """Warn that losses may have been matched to the wrong samples."""
    warnings.warn(
        f"Epoch {epoch} ended with {waiting} samples issued to the loader and never updated. Either "
        "the loop stopped shortly before the epoch's end, or an update was left out; then losses may "
        "belong to other samples, so none of this epoch's became scores. Call skip() for a "
        "batch without an update, or carry the index in the batch (Pruner, Indexed, with_index).",
        stacklevel=2,
    )


def warn_of_sharding(epoch: int, length: int, updated: int, largest: int, ranks: Ranks) -> None:
    """Warn if the batches were divided among the ranks twice, or not at all."""
    if ranks.world_size == 1:
        return
    part = length * ranks.walkers / ranks.world_size  # this rank's part of the epoch
    room = 2 * largest
    if not ranks.global_order and updated <= part / ranks.world_size + room < part / 1.5:
        warnings.warn(
            f"In epoch {epoch} rank {ranks.rank} was issued {length} samples and updated {updated}. "
            "If the loader shards the batches itself, they were divided twice and most samples were "
            "not seen: pass Pruner(…, global_order=True).",
            stacklevel=2,
        )
    if ranks.global_order and updated > 1.5 * part + room:
        warnings.warn(
            f"In epoch {epoch} each of {ranks.world_size} ranks updated about all {length} samples: "
            "nothing divided them. Expected a loader that shards the batches itself "
            "(accelerator.prepare(loader)); otherwise pass Pruner(…, global_order=False).",
            stacklevel=2,
        )


class ReadPosition(NamedTuple):
    """How far a loader has read: ``read`` samples of ``epoch``, over all ranks."""

    epoch: int
    read: int


def check_position(position: ReadPosition, clock: Clock, done: int) -> None:
    """Raise if a loader's checkpoint comes without the pruner's own, which has the scores.

    ``done`` samples of the clock's epoch are part of the pruner's state.
    """
    if position == ReadPosition(0, 0):
        return
    at_end = done == 0 and position.epoch == clock.finished == clock.epoch - 1
    if clock.resumed and (at_end or position == ReadPosition(clock.epoch, done)):
        return
    ours = "was not loaded"
    if clock.resumed:
        ours = f"was saved after {done} samples of epoch {clock.epoch}"
    raise RuntimeError(
        f"The loader's state was saved after {position.read} samples of epoch {position.epoch}, but "
        f"train_data's {ours}. Save train_data.state_dict() with it, after the same update (and with "
        "snapshot_every_n_steps=1), and load both; train_data's alone is enough."
    )
