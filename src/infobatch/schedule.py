"""Keep a learning-rate schedule that was built for full epochs in step with pruned ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from infobatch.checks import check_steps
from infobatch.dataset import InfoBatch
from infobatch.epoch.progress import Progress
from infobatch.pruner import Pruner


class Paceable(Protocol):
    """An object that can pace a schedule: a pruner, or a trainer that knows its progress."""

    @property
    def num_epochs(self) -> int:
        """How many epochs training takes in total."""
        ...

    @property
    def progress(self) -> Progress:
        """How far the running epoch has come."""
        ...


def paced(
    scheduler: LRScheduler,
    train_data: InfoBatch | Pruner | Paceable,
    *,
    steps_per_epoch: int | None = None,
) -> PacedScheduler:
    """Pace a per-step scheduler that was built for the number of steps of full-data training.

    Call ``step()`` after each optimizer step, as usual: it advances the inner scheduler by the
    full-data steps that are due. Every epoch, pruned or not, advances it by one full epoch, and the
    schedule reaches exactly its end. ``steps_per_epoch`` is the number of steps in an epoch over
    all data; without it, the first epoch shows how many samples a step has. A scheduler that is
    stepped once per epoch needs no pacing.
    """
    return PacedScheduler(scheduler, train_data, steps_per_epoch=steps_per_epoch)


class PacedScheduler:
    """The result of :func:`paced`; ``scheduler`` is the inner scheduler."""

    def __init__(
        self,
        scheduler: LRScheduler,
        train_data: InfoBatch | Pruner | Paceable,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        if steps_per_epoch is not None:
            steps_per_epoch = check_steps("paced()", steps_per_epoch)
        self.scheduler = scheduler
        self._course: Paceable = (
            train_data.pruner if isinstance(train_data, InfoBatch) else train_data
        )
        self._steps_per_epoch = steps_per_epoch
        self._made = 0  # steps of the inner scheduler
        self._seen: Progress | None = None  # of the first epoch, at the last call
        self._group = 0  # samples of a step
        self._drops_rest = False  # leftover batches at an epoch's end make no step

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose learning rate is scheduled."""
        return self.scheduler.optimizer

    @property
    def last_epoch(self) -> int:
        """The inner scheduler's count, in full-data steps."""
        return self.scheduler.last_epoch

    def get_last_lr(self) -> list[Any]:
        """The current learning rates, one per parameter group."""
        return self.scheduler.get_last_lr()

    def step(self) -> None:
        """Advance the schedule for one optimizer step."""
        progress = self._course.progress
        if self._steps_per_epoch is None:
            if progress.epoch == 1 and not progress.done and self._seen is not None:
                # The first epoch's last call, after the next epoch was already requested.
                progress = self._seen._replace(done=self._seen.total)
            if progress.epoch == 0:
                self._watch(progress)
                return
            self._learn()
        assert self._steps_per_epoch is not None
        if self._drops_rest:
            usable = progress.total - progress.total % self._group
            progress = progress._replace(total=max(usable, 1))
        steps = self._course.num_epochs * self._steps_per_epoch
        self._advance_to(min(progress.full_steps(self._steps_per_epoch), steps))

    def _watch(self, progress: Progress) -> None:
        """Follow the first epoch. Skipped steps and the remainder at its end do not count."""
        group = progress.done - (0 if self._seen is None else self._seen.done)
        if not self._group or (progress.done < progress.total and 0 < group < self._group):
            self._group = group
        self._seen = progress
        if self._group:  # else nothing was updated before this step
            self._advance_to(progress.full_steps(-(-progress.full // self._group)))

    def _learn(self) -> None:
        """Derive the full number of steps from the first epoch."""
        seen = self._seen
        if seen is None or not self._group:
            raise RuntimeError(
                f"paced(…).step() was first called in epoch {self._course.progress.epoch}, so the "
                "first epoch could not show how many samples a step has. Pass paced(…, "
                "steps_per_epoch=…), or load its state with load_state_dict()."
            )
        # Less than a step left at the end: accumulated gradients that were never used.
        self._drops_rest = 0 < seen.total - seen.done < self._group
        steps, rest = divmod(seen.full, self._group)
        self._steps_per_epoch = steps + (rest > 0 and not self._drops_rest)

    def _advance_to(self, step: int) -> None:
        while self._made < step:
            self.scheduler.step()
            self._made += 1

    def state_dict(self) -> dict[str, Any]:
        """The inner scheduler's state and the pace."""
        return {
            "scheduler": self.scheduler.state_dict(),
            "steps_per_epoch": self._steps_per_epoch,
            "made": self._made,
            "first_epoch": None if self._seen is None else list(self._seen),
            "group": self._group,
            "drops_rest": self._drops_rest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._steps_per_epoch = state["steps_per_epoch"]
        self._made = state["made"]
        first_epoch = state["first_epoch"]
        self._seen = None if first_epoch is None else Progress(*first_epoch)
        self._group = state["group"]
        self._drops_rest = state["drops_rest"]
