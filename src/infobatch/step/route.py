"""One rank's route through a plan: the positions it visits, equally many on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed.ranks import Ranks
from infobatch.plan import Plan


class Route:
    """The positions of a plan that this rank visits, in order.

    ``left`` are the codes of the plan still to be visited; a loaded checkpoint has visited the
    others, in the first ``offset`` positions of each rank. All ranks have equally many positions,
    of which the last may be repeats; ``shard`` are this rank's codes without repeats. ``counts``
    are the numbers of positions of each rank without repeats, ``full_counts`` those of an epoch
    over all data, and ``longest`` the positions of the rank that has most.
    """

    def __init__(self, plan: Plan, ranks: Ranks, left: npt.NDArray[Any]) -> None:
        self.plan = plan
        self.ranks = ranks
        self.left = left
        visited = len(plan) - len(left)
        if ranks.sharded:
            self.shard = left
            rank_counts = torch.tensor([len(left), plan.num_samples, visited])
            counts_by_rank = ranks.communicator.gather(rank_counts).cpu().numpy()
            self.counts, self.full_counts = counts_by_rank[:, 0], counts_by_rank[:, 1]
            self.visited_before = int(counts_by_rank[:, 2].sum())
            longest = int((self.counts + counts_by_rank[:, 2]).max())
            self.offset = longest - int(self.counts.max())
            self._repeats_from = len(left) + visited - self.offset
            whole_route = plan.codes
        else:
            self.shard = left[ranks.rank % ranks.walkers :: ranks.walkers]
            self.counts = _even_counts(len(left), ranks.walkers)
            self.full_counts = _even_counts(plan.num_samples, ranks.walkers)
            self.visited_before = visited
            self.offset = visited // ranks.walkers
            self._repeats_from = len(self.shard)
            whole_route = plan.codes[(visited + ranks.rank) % ranks.walkers :: ranks.walkers]
        # From the start of this rank's whole route, including what was visited before a resume.
        self._repeats = whole_route if len(whole_route) else plan.codes
        self.length = self.longest = int(self.counts.max())
        self.all_real = int(self.counts.min())  # positions that are not repeats on any rank

    def __len__(self) -> int:
        return self.length

    def pad(self, multiple: int) -> None:
        """Add repeats until the number of positions is a multiple of ``multiple``."""
        self.length = -(-self.longest // multiple) * multiple

    def codes(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The codes at some positions."""
        codes = self.shard[start:stop]
        missing = stop - start - len(codes)
        if missing:  # add repeats, the same ones after a resume
            repeats = np.resize(self._repeats, stop - self._repeats_from)
            codes = np.append(codes, repeats[-missing:])
        return codes

    def indices(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The samples at some positions."""
        return self.plan.indices(self.codes(start, stop))

    @property
    def planned(self) -> int:
        """The number of samples in the epoch, over all ranks."""
        return int(self.counts.sum()) + self.visited_before

    def reached(self, positions: int) -> int:
        """The number of samples visited after ``positions`` positions on every rank."""
        return int(self.counts.clip(max=positions).sum()) + self.visited_before


def _even_counts(total: int, walkers: int) -> npt.NDArray[np.int64]:
    """Divide positions as evenly as possible."""
    whole, more = divmod(total, walkers)
    counts: npt.NDArray[np.int64] = whole + (np.arange(walkers) < more)
    return counts
