"""How far an epoch has come, and what that is in steps of full-data training."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """``done`` of the ``total`` samples of an epoch, over all ranks.

    ``total`` leaves out an incomplete last batch that the loader drops. ``full`` is the total of an
    epoch over all data, cut into batches in the same way. Where batches shrink instead of the epoch,
    all three count the samples of the full batches that they stand for.
    """

    epoch: int
    done: int
    total: int
    full: int

    def full_steps(self, steps_per_epoch: int) -> int:
        """The optimizer steps that full-data training would have made by now.

        ``steps_per_epoch`` are those of an epoch over all data. Every epoch, pruned or not, is worth
        as many; this is the one formula by which schedules are paced.
        """
        in_epoch = min(self.done, self.total) * steps_per_epoch // self.total
        return self.epoch * steps_per_epoch + in_epoch
