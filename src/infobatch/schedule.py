"""Pruned epochs are shorter: keep a learning-rate schedule that was built for full ones in step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from infobatch.dataset import InfoBatch
from infobatch.pruner import Pruner


def paced(
    scheduler: LRScheduler,
    train_data: InfoBatch | Pruner,
    *,
    steps_per_epoch: int | None = None,
) -> PacedScheduler:
    """Pace a per-step scheduler that was built for the full data's number of steps.

    Call ``step()`` after each optimizer step, as ever: it advances the inner scheduler by as many
    full-data steps as have fallen due. Every epoch, pruned or not, advances it by one full epoch,
    and it ends exactly at its end. The first epoch, which is whole, teaches it the full number of
    steps, or ``steps_per_epoch`` says it. A scheduler stepped once an epoch needs no pacing.
    """
    return PacedScheduler(scheduler, train_data, steps_per_epoch=steps_per_epoch)


class PacedScheduler:
    """What :func:`paced` returns; ``scheduler`` is the inner one."""

    def __init__(
        self,
        scheduler: LRScheduler,
        train_data: InfoBatch | Pruner,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(
                f"paced(steps_per_epoch={steps_per_epoch}) got a wrong value, expected the optimizer "
                "steps of an epoch over all data, from 1 on."
            )
        self.scheduler = scheduler
        self._pruner = train_data.pruner if isinstance(train_data, InfoBatch) else train_data
        self._steps_per_epoch = steps_per_epoch
        self._made = 0  # steps of the inner scheduler
        # What the first epoch teaches: calls of step(), samples by the last call, samples in all.
        self._calls = self._samples = self._all_samples = 0
        self._group = 0  # samples of a step, where a last incomplete group of batches gets none

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose learning rate is scheduled."""
        return self.scheduler.optimizer

    @property
    def last_epoch(self) -> int:
        """The inner scheduler's count, in full-data steps."""
        return self.scheduler.last_epoch

    def get_last_lr(self) -> list[Any]:
        """The learning rates in force, one a parameter group."""
        return self.scheduler.get_last_lr()

    def step(self) -> None:
        """Advance the schedule for one optimizer step."""
        epoch, done, total = self._pruner.progress
        if self._steps_per_epoch is None:
            if epoch == 0:
                self._calls, self._samples, self._all_samples = self._calls + 1, done, total
                self._advance_to(self._calls)
                return
            if epoch == 1 and done == 0 and self._calls:
                # The first epoch's last call, after something has already asked for the next one.
                self._calls, self._samples = self._calls + 1, self._all_samples
                self._advance_to(self._calls)
                return
            self._learn()
        assert self._steps_per_epoch is not None
        if self._group:
            total = max(total - total % self._group, 1)
        due = epoch * self._steps_per_epoch + min(done, total) * self._steps_per_epoch // total
        self._advance_to(min(due, self._pruner.num_epochs * self._steps_per_epoch))

    def _learn(self) -> None:
        """Work out the full number of steps from the first epoch's calls."""
        if not self._calls:
            raise RuntimeError(
                f"paced(…).step() was first called in epoch {self._pruner.epoch}, so the first epoch "
                "could not teach it the full number of steps. Pass paced(…, steps_per_epoch=…), or "
                "load its state with load_state_dict()."
            )
        self._steps_per_epoch = self._calls
        left = self._all_samples - self._samples
        group = -(-self._samples // self._calls)
        if left >= group:  # the first epoch was broken off
            self._steps_per_epoch = -(-self._all_samples // group)
        elif left:  # gradients are accumulated, and those of the last batches were never used
            self._group = group

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
            "first_epoch": [self._calls, self._samples, self._all_samples],
            "group": self._group,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_dict`."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._steps_per_epoch = state["steps_per_epoch"]
        self._made = state["made"]
        self._calls, self._samples, self._all_samples = state["first_epoch"]
        self._group = state["group"]
