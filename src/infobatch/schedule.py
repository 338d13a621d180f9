"""Pruned epochs are shorter: keep a learning-rate schedule that was built for full ones in step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from infobatch.checks import check_count
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
        if steps_per_epoch is not None:
            why = "it counts the optimizer steps of an epoch over all data"
            steps_per_epoch = check_count("paced(): steps_per_epoch", steps_per_epoch, why)
        self.scheduler = scheduler
        self._pruner = train_data.pruner if isinstance(train_data, InfoBatch) else train_data
        self._steps_per_epoch = steps_per_epoch
        self._made = 0  # steps of the inner scheduler
        # What the first epoch teaches: samples of a step, samples by the last call, samples in all.
        self._group = self._samples = self._all_samples = 0
        self._drops_rest = False  # batches at an epoch's end that make no whole step get none

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
            if epoch == 1 and done == 0 and self._group:
                # The first epoch's last call, after something has already asked for the next one.
                epoch, done, total = 0, self._all_samples, self._all_samples
            if epoch == 0:
                self._watch(done, total)
                return
            self._learn()
        assert self._steps_per_epoch is not None
        if self._drops_rest:
            total = max(total - total % self._group, 1)
        due = epoch * self._steps_per_epoch + min(done, total) * self._steps_per_epoch // total
        self._advance_to(min(due, self._pruner.num_epochs * self._steps_per_epoch))

    def _watch(self, done: int, total: int) -> None:
        """Follow the first epoch. A step that is left out, or the rest at its end, is no measure."""
        group = done - self._samples
        if not self._group or (done < total and 0 < group < self._group):
            self._group = group
        self._samples, self._all_samples = done, total
        if self._group:  # else nothing was updated before this step
            self._advance_to(-(-done // self._group))

    def _learn(self) -> None:
        """Work out the full number of steps from what the first epoch showed."""
        if not self._group:
            raise RuntimeError(
                f"paced(…).step() was first called in epoch {self._pruner.epoch}, so the first epoch "
                "could not teach it the full number of steps. Pass paced(…, steps_per_epoch=…), or "
                "load its state with load_state_dict()."
            )
        # Less than a step left at the end: accumulated gradients that were never used.
        self._drops_rest = 0 < self._all_samples - self._samples < self._group
        steps, rest = divmod(self._all_samples, self._group)
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
            "first_epoch": [self._group, self._samples, self._all_samples],
            "drops_rest": self._drops_rest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_dict`."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._steps_per_epoch = state["steps_per_epoch"]
        self._made = state["made"]
        self._group, self._samples, self._all_samples = state["first_epoch"]
        self._drops_rest = state["drops_rest"]
