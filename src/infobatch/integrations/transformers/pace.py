"""The progress of training, in the steps that full data would take.

The Trainer fixes the number of steps before it begins, for epochs over all data. A pruned epoch
makes fewer steps; here each of them counts for a little more, so that every epoch counts for the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infobatch.epoch.progress import Progress
from infobatch.pruner import Pruner


@dataclass
class EpochUnderWay:
    """The Trainer's position in an epoch."""

    epoch: int
    samples: int  # of the whole epoch, over all ranks, without those that the loader drops
    batches: int  # of the whole epoch, on this rank
    batches_done: int
    samples_at_once: int  # in a batch, over all ranks

    @property
    def progress(self) -> Progress:
        """The position in samples, over all ranks."""
        done = self.batches_done * self.samples_at_once
        return Progress(self.epoch, done, self.samples, full=self.samples)

    @property
    def over(self) -> bool:
        """Whether every batch has been trained on."""
        return self.batches_done >= self.batches


@dataclass(frozen=True)
class Course:
    """A training run in full-data steps: their number per epoch and in total."""

    steps_per_epoch: int
    steps: int

    def due(self, now: EpochUnderWay) -> int:
        """The full-data steps due by now, in proportion to the epoch's samples."""
        return min(now.progress.full_steps(self.steps_per_epoch), self.steps)

    def steps_to_make(self, epoch: int, of: int) -> int:
        """How many of an epoch's ``of`` steps are made before the run ends."""
        left = min(max(self.steps - epoch * self.steps_per_epoch, 0), self.steps_per_epoch)
        return -(-left * of // self.steps_per_epoch)

    def steps_to_come(self, pruner: Pruner, epoch: int, of: int) -> int:
        """The exact steps of this epoch, plus those of later epochs as far as they are known."""
        to_make = self.steps_to_make(epoch, of)
        for later in range(epoch + 1, pruner.num_epochs):
            pruned = not pruner.plan.whole and pruner._course.planner.prunes(later)
            to_make += self.steps_to_make(later, of if pruned else self.steps_per_epoch)
        return to_make


class VirtualSteps:
    """A learning-rate scheduler in full-data steps, which advances by those that are due.

    Everything except ``step`` and the state is delegated to the inner ``scheduler``.
    """

    def __init__(self, scheduler: Any, due: Callable[[], int]) -> None:
        self.scheduler = scheduler
        self._due = due
        self._made = 0

    def step(self) -> None:
        """Advance the schedule for one optimizer step."""
        due = self._due()
        while self._made < due:
            self.scheduler.step()
            self._made += 1

    def state_dict(self) -> dict[str, Any]:
        """The inner scheduler's state, and how many steps it has made."""
        return {"scheduler": self.scheduler.state_dict(), "made": self._made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._made = state["made"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "scheduler" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)
