"""Progress within an epoch, and its equivalent in full-data training steps."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """``done`` of the ``total`` samples of an epoch, over all ranks.

    ``total`` excludes an incomplete last batch that the loader drops. ``full`` is the total of an
    epoch over all data, divided into batches in the same way. If batches shrink instead of the
    epoch, all three count the samples of the full batches that they stand for.
    """

    epoch: int
    done: int
    total: int
    full: int

    def full_steps(self, steps_per_epoch: int) -> int:
        """The optimizer steps that full-data training would have made by now.

        ``steps_per_epoch`` is the number of steps in an epoch over all data. Every epoch, pruned or
        not, advances by that number; all schedules are paced by this formula.
        """
        in_epoch = min(self.done, self.total) * steps_per_epoch // self.total
        return self.epoch * steps_per_epoch + in_epoch
