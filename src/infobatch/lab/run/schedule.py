"""A learning-rate schedule that stays at its end."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class EndingSchedule:
    """A schedule with a fixed number of steps, after which it stays where it is.

    :func:`infobatch.paced` ends a schedule with the last epoch. A run of the lab may end within a
    pruned epoch, in which a step counts for more than one step of the schedule; the last one could
    go beyond the end, and some torch schedulers then raise an error. torch has no scheduler that
    stays at the end of another: ``SequentialLR`` begins the next one at the initial rate.
    """

    def __init__(self, scheduler: LRScheduler, total_steps: int) -> None:
        self._scheduler, self._total_steps = scheduler, total_steps

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose learning rate is scheduled."""
        return self._scheduler.optimizer

    @property
    def last_epoch(self) -> int:
        """The number of steps taken, by torch's name."""
        return self._scheduler.last_epoch

    def step(self) -> None:
        """Take a step, unless all have been taken."""
        if self.last_epoch < self._total_steps:
            self._scheduler.step()

    def get_last_lr(self) -> list[Any]:
        """The learning rates in force, one per parameter group."""
        return self._scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._scheduler.load_state_dict(state)
