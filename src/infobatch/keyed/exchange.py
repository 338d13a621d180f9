"""What the ranks exchange: visits by key when an epoch ends, and decisions if each rank has a shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed.communicator import Communicator
from infobatch.distributed.ranks import Ranks
from infobatch.keyed.chance import Hashes
from infobatch.keyed.record import Visits
from infobatch.memory.memory import SCORE
from infobatch.plan.strata import LabelArray

_CHUNK = 1 << 18  # keys that a rank sends at a time


def gather_visits(visits: Visits, communicator: Communicator) -> Iterator[Visits]:
    """All ranks' visits, a few at a time. Collective; ranks may have different numbers of them."""
    if communicator.world_size == 1:
        yield visits
        return
    names = sorted(visits.values)
    counts = communicator.gather(torch.tensor([len(visits.hashes)])).flatten().tolist()
    for start in range(0, max(counts), _CHUNK):
        sizes = [min(max(count - start, 0), _CHUNK) for count in counts]
        chunk = slice(start, start + _CHUNK)
        hashes = _gathered(visits.hashes[chunk].view(np.int64), sizes, communicator)
        values = {
            name: _gathered(visits.values[name][chunk], sizes, communicator) for name in names
        }
        yield Visits(hashes.view(np.uint64), values)


def _gathered(
    values: npt.NDArray[Any], sizes: list[int], communicator: Communicator
) -> npt.NDArray[Any]:
    padded = torch.zeros(max(sizes), dtype=torch.from_numpy(values[:0]).dtype)
    padded[: len(values)] = torch.from_numpy(values)
    rows = communicator.gather(padded).cpu().numpy()
    return np.concatenate([row[:size] for row, size in zip(rows, sizes, strict=True)])


def joined(parts: Sequence[Visits]) -> Visits:
    """Several parts as one."""
    if len(parts) == 1:
        return parts[0]
    hashes = np.concatenate([np.empty(0, np.uint64), *(part.hashes for part in parts)])
    names = parts[0].values if parts else {SCORE: None}
    return Visits(
        hashes,
        {
            name: np.concatenate([np.empty(0, np.float32), *(p.values[name] for p in parts)])
            for name in names
        },
    )


def owned(hashes: Hashes, ranks: Ranks) -> npt.NDArray[np.bool_] | slice:
    """Which keys are this rank's."""
    if not ranks.sharded:
        return slice(None)
    shard: npt.NDArray[np.bool_] = hashes % np.uint64(ranks.world_size) == ranks.rank
    return shard


def something_known(count: int, ranks: Ranks) -> bool:
    """Whether any rank knows a key. Collective with sharded scores."""
    counts = [count]
    if ranks.sharded:
        counts = ranks.communicator.gather(torch.tensor(counts)).flatten().tolist()
    if any(counts) and not all(counts):
        raise ValueError(
            f"sharded=True got {sum(counts)} keys for {ranks.world_size} ranks, one of which has none of "
            "them. Use sharded=False for data this small."
        )
    return any(counts)


def all_decisions(hashes: Hashes, labels: LabelArray, ranks: Ranks) -> tuple[Hashes, LabelArray]:
    """The decisions of all ranks about their shards, sorted by hash. Collective."""
    parts = list(gather_visits(Visits(hashes, {"label": labels}), ranks.communicator))
    hashes = np.concatenate([np.empty(0, np.uint64), *(part.hashes for part in parts)])
    labels = np.concatenate([np.empty(0, np.uint8), *(part.values["label"] for part in parts)])
    order = hashes.argsort()
    return hashes[order], labels[order]


def check_ranks(numbers: list[int], ranks: Ranks) -> None:
    """Raise if these numbers differ between the ranks. Collective."""
    rows = ranks.communicator.gather(torch.tensor(numbers))
    if not bool((rows == rows[0]).all()):
        raise RuntimeError(
            "The ranks have decided differently about this epoch. Expected the same seed, policy, delta "
            "and num_epochs on each, the same state loaded on each, and set_epoch() called with the same "
            "epoch on each."
        )
