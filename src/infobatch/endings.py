"""What can be amiss when an epoch ends: losses that met the wrong samples, batches dealt out twice."""

from __future__ import annotations

import warnings

from infobatch.ledger import Ledger
from infobatch.sampler import Walk


def discard_unmatched(ledger: Ledger, walk: Walk, epoch: int) -> None:
    """Drop an epoch's losses if an update was left out where counting could not show it."""
    waiting = walk.deliverable - ledger.taken
    if walk.broken_off:
        return
    if not walk.asked_by_batch and waiting < ledger.largest_batch:
        return  # a loader of another kind that may well have dropped an incomplete last batch
    if ledger.started and walk.exhausted and waiting > 0:
        ledger.discard()
        warnings.warn(
            f"Epoch {epoch} ended with {waiting} samples handed out to the loader and never updated. "
            "Either the loop broke off shortly before the epoch's end, or an update was left out; "
            "then losses may have met the wrong samples, so none of this epoch's were taken as "
            "scores. Call skip() for a batch without an update, or carry the index in the batch "
            "(Pruner, Indexed, with_index).",
            stacklevel=3,
        )


def warn_of_dealing(ledger: Ledger, walk: Walk, epoch: int) -> None:
    """Warn where the batches were divided among the ranks twice, or not at all."""
    ranks = ledger.ranks
    if ranks.world_size == 1 or not walk.exhausted:
        return
    share = len(ledger) * ranks.walkers / ranks.world_size  # this rank's part of the epoch
    room = 2 * ledger.largest_batch
    if not ranks.global_order and ledger.taken <= share / ranks.world_size + room < share / 1.5:
        warnings.warn(
            f"In epoch {epoch} rank {ranks.rank} was handed {len(ledger)} samples and updated "
            f"{ledger.taken}. If the loader deals out the batches to the ranks itself, they were "
            "divided twice and most samples went unseen: pass Pruner(…, global_order=True).",
            stacklevel=3,
        )
    if ranks.global_order and ledger.taken > 1.5 * share + room:
        warnings.warn(
            f"In epoch {epoch} each of {ranks.world_size} ranks updated about all {len(ledger)} "
            "samples: nothing divided them. Expected a loader that deals out the batches itself "
            "(accelerator.prepare(loader)); else pass Pruner(…, global_order=False).",
            stacklevel=3,
        )
