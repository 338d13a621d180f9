"""Progress within an epoch, and its equivalent in full-data training steps."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """How many samples of an epoch are done, over all ranks.

    If batches shrink instead of the epoch, all three numbers count the samples of the full batches
    that they stand for.

    Attributes:
        epoch: the epoch, from 0.
        done: the samples that were updated or skipped.
        total: the samples of the epoch, without an incomplete last batch that the loader drops.
        full: the total of an epoch over all data, divided into batches in the same way.
    """

    epoch: int
    done: int
    total: int
    full: int

    def full_steps(self, steps_per_epoch: int) -> int:
        """Return the optimizer steps that full-data training would have made by now.

        All schedules are paced by this formula.

        Args:
            steps_per_epoch: the number of steps in an epoch over all data; every epoch, pruned or not,
                advances by that number.

        Returns:
            The number of steps since the start of the training.
        """
        in_epoch = min(self.done, self.total) * steps_per_epoch // self.total
        return self.epoch * steps_per_epoch + in_epoch
