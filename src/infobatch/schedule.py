"""Keep a learning-rate schedule that was built for full epochs in step with pruned ones."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from infobatch.checks import check_steps
from infobatch.epoch.progress import Progress
from infobatch.loaders import accelerate
from infobatch.pruner import Pruner
from infobatch.rhythm import Rhythm

_POINTS = 64  # at which the functions of two schedules are compared


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
    train_data: Pruner | Paceable,
    *,
    steps_per_epoch: int | None = None,
) -> PacedScheduler:
    """Pace a per-step scheduler that was built for the number of steps of full-data training.

    Call ``step()`` after each optimizer step, as usual: it advances the inner scheduler by the
    full-data steps that are due. Every epoch, pruned or not, advances it by one full epoch, and the
    schedule reaches exactly its end. A scheduler that is stepped once per epoch needs no pacing.

    Args:
        scheduler: built for ``num_epochs`` times the steps of an epoch over all data.
        train_data: the pruned data, or its pruner.
        steps_per_epoch: the number of optimizer steps in an epoch over all data. Without it, the
            first epoch shows it, if its batches are equal. With it, a run also resumes with another
            batch size or number of processes, for which the scheduler was rebuilt.

    Returns:
        The paced scheduler, to be used and saved in place of the other one.

    Raises:
        TypeError, ValueError: if the scheduler cannot be paced, or was not built for the full data.

    Example::

        scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=num_epochs * len(loader))
        scheduler = infobatch.paced(scheduler, train_data, steps_per_epoch=len(loader))
    """
    return PacedScheduler(scheduler, train_data, steps_per_epoch=steps_per_epoch)


class PacedScheduler:
    """A scheduler that is stepped as often as full-data training would step it; :func:`paced` returns it.

    Args:
        scheduler, train_data, steps_per_epoch: see :func:`paced`.

    Attributes:
        scheduler: the inner scheduler, which was given.

    Raises:
        TypeError, ValueError: as :func:`paced` does.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        train_data: Pruner | Paceable,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        if accelerate.is_prepared_scheduler(scheduler):
            raise TypeError(
                "paced() got a scheduler that Accelerate has prepared, which steps once for each process "
                "and does not know about shorter epochs. Expected the scheduler itself, not prepared, "
                "built for the optimizer steps of the prepared loader."
            )
        self.scheduler = scheduler
        self._training: Paceable = train_data
        self._at_start = copy.deepcopy(scheduler.state_dict())
        self._given = steps_per_epoch is not None
        self._steps_per_epoch: int | None = None
        self._rhythm = Rhythm()
        self._progress: Progress | None = None  # at the last call
        self._made = 0  # steps of the inner scheduler
        if steps_per_epoch is not None:
            self._set_steps_per_epoch(check_steps("paced()", steps_per_epoch))

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose learning rate is scheduled."""
        return self.scheduler.optimizer

    @property
    def last_epoch(self) -> int:
        """The inner scheduler's count, in full-data steps."""
        return self.scheduler.last_epoch

    def get_last_lr(self) -> list[Any]:
        """Return the current learning rates.

        Returns:
            One per parameter group.
        """
        return self.scheduler.get_last_lr()

    def step(self) -> None:
        """Advance the schedule for one optimizer step, which was made before."""
        progress, last = self._training.progress, self._progress
        if progress.epoch == 1 and not progress.done and last is not None and last.epoch == 0:
            # The first epoch's last call, after the next epoch was already requested.
            progress = last._replace(done=last.total)
        if last is not None and progress.epoch != last.epoch:
            self._rhythm.end_epoch(last)
        self._progress = progress
        if progress.epoch == 0:
            self._rhythm.observe(progress)
            if self._steps_per_epoch is None:
                self._advance_to(self._rhythm.steps(progress))
                return
        elif self._steps_per_epoch is None:
            self._set_steps_per_epoch(self._rhythm.steps_per_epoch(progress.epoch))
        self._advance_to(self._due(progress))

    def _set_steps_per_epoch(self, steps: int) -> None:
        self._steps_per_epoch = steps
        epochs = self._training.num_epochs
        if _ends_before(self.scheduler, epochs * steps, steps):
            warnings.warn(
                f"paced() got a schedule that ends before the {epochs} epochs of {steps} steps each "
                "that training takes according to num_epochs. If your script derives the number of "
                "epochs from max_train_steps, pass that number, and "
                "build the schedule for num_epochs times the steps of an epoch over all data.",
                stacklevel=3,
            )

    def _due(self, progress: Progress) -> int:
        assert self._steps_per_epoch is not None
        if progress.epoch:
            progress = progress._replace(total=self._rhythm.last_call(progress.total))
        steps = self._training.num_epochs * self._steps_per_epoch
        return min(progress.full_steps(self._steps_per_epoch), steps)

    def _advance_to(self, step: int) -> None:
        while self._made < step:
            self.scheduler.step()
            self._made += 1

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return the inner scheduler's state and the position in epochs, which no batch size changes.

        Returns:
            The state, in plain numbers and what the inner scheduler has.
        """
        return {
            "scheduler": self.scheduler.state_dict(),
            "functions": _function_values(self.scheduler, self._known_steps()),
            "num_epochs": self._training.num_epochs,
            "steps_per_epoch": self._steps_per_epoch,
            "made": self._made,
            "progress": None if self._progress is None else list(self._progress),
            "rhythm": self._rhythm.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`, at the same share of the run.

        The inner scheduler may be built for another number of steps than the saved one, if
        ``steps_per_epoch`` was passed to :func:`paced`.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: if the schedule is another one, as far as its functions and length show.
        """
        self._progress = None if state["progress"] is None else Progress(*state["progress"])
        self._made = state["made"]
        other_epochs = state["num_epochs"] != self._training.num_epochs
        other_steps = self._given and state["steps_per_epoch"] != self._steps_per_epoch
        if not self._given:
            self._steps_per_epoch = state["steps_per_epoch"]
        if not other_steps:  # else a step has another number of samples now
            self._rhythm = Rhythm.of_state(state["rhythm"])
        if other_epochs and not self._given:
            raise ValueError(
                f"paced(…).load_state_dict() got the state of a run over {state['num_epochs']} epochs, and "
                f"this one takes {self._training.num_epochs}, so the schedule is another one. Expected "
                "paced(…, steps_per_epoch=…), with the steps of an epoch over all data that it was "
                "built for: training then continues at the same epoch of the new schedule."
            )
        if other_steps or other_epochs:
            self._rebuild()
            return
        if not self._given:
            self._check_functions(state["functions"])
        self.scheduler.load_state_dict(state["scheduler"])

    def _rebuild(self) -> None:
        """Bring the inner scheduler, as it was built here, to the saved position."""
        self.scheduler.load_state_dict(copy.deepcopy(self._at_start))
        for group, rate in zip(
            self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True
        ):
            group["lr"] = rate
        position, self._made = self._made, 0
        if self._steps_per_epoch is not None and self._progress is not None:
            position = self._due(self._progress)
        with warnings.catch_warnings():  # the steps of the optimizer were made before
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before")
            self._advance_to(position)

    def _check_functions(self, saved: list[list[float]]) -> None:
        """Raise if a function that is not in the state is not the one of the saved schedule."""
        steps = self._known_steps()
        for old_values, new_values in zip(
            saved, _function_values(self.scheduler, steps), strict=False
        ):
            for step, old_value, new_value in zip(
                _probes(steps), old_values, new_values, strict=True
            ):
                if not math.isclose(old_value, new_value, rel_tol=1e-6, abs_tol=1e-9):
                    raise ValueError(
                        f"paced(…).load_state_dict() got a schedule whose function was {old_value:.4g} at step "
                        f"{step}, but here it is {new_value:.4g}: it was made for another number of steps, and "
                        "a LambdaLR's state does not contain it. Expected the same function, or, with "
                        "another batch size or number of processes, paced(…, steps_per_epoch=…) with "
                        "the steps of an epoch over all data that it was made for: training then "
                        "continues at the same share of the schedule."
                    )

    def _known_steps(self) -> int:
        """How far the schedule is known to go: to its end, or so far in the first epoch."""
        if self._steps_per_epoch is None:
            return max(self._made, self._training.num_epochs * self._rhythm.fewest_steps)
        return self._training.num_epochs * self._steps_per_epoch


def _functions(scheduler: Any) -> list[Any]:
    """The functions of every ``LambdaLR`` in a scheduler: torch does not save them."""
    functions = list(getattr(scheduler, "lr_lambdas", ()))
    for part in getattr(scheduler, "_schedulers", ()):
        functions += _functions(part)
    return functions


def _probes(steps: int) -> list[int]:
    return sorted({steps * point // _POINTS for point in range(_POINTS + 1)})


def _function_values(scheduler: Any, steps: int) -> list[list[float]]:
    """The values of a schedule's functions, evenly over the steps, to recognise them by."""
    probes = _probes(steps)
    return [[float(function(step)) for step in probes] for function in _functions(scheduler)]


def _ends_before(scheduler: Any, steps: int, steps_per_epoch: int) -> bool:
    """Whether a schedule is over, as far as it shows, for at least half of the last epoch."""
    if getattr(scheduler, "total_steps", steps) <= steps - steps_per_epoch // 2 - 1:
        return True
    last = range(max(steps - max(steps_per_epoch // 2, 1), 1), steps)
    functions = getattr(scheduler, "lr_lambdas", ())
    if not functions or not last:
        return False
    return not any(function(step) for function in functions for step in (last[0], last[-1]))
