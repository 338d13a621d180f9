"""The settings of one run: the same settings give the same result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from infobatch.lab.smoke import SMOKE_BATCH, SMOKE_EPOCHS
from infobatch.lab.task import Task


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run, as stored in its checkpoint and its result."""

    task: str
    arm: str
    seed: int
    epochs: int  # of training on all data at full length
    batch_size: int
    learning_rate: float
    length: float = 1.0  # the share of these epochs to train for, with the schedule compressed
    budget: int | None = None  # sample passes of an arm that has another one's cost
    leader: str | None = None  # that other arm
    smoke: bool = False
    validation: bool = False  # train on four fifths and measure on the rest, to choose settings
    options: dict[str, str] = field(default_factory=dict)
    task_hash: str | None = None  # of a user's own file
    rule_hash: str | None = None  # of the files that an arm's rule and scores are from


def settings_of(
    task: Task, *, arm: str, seed: int, smoke: bool = False, **more: Any
) -> RunSettings:
    """The settings of a run of a task."""
    settings = RunSettings(
        task=task.name,
        arm=arm,
        seed=seed,
        epochs=SMOKE_EPOCHS if smoke else task.epochs,
        batch_size=min(task.batch_size, SMOKE_BATCH) if smoke else task.batch_size,
        learning_rate=task.learning_rate,
        smoke=smoke,
    )
    return replace(settings, **more)
