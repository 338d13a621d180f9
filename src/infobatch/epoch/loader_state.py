"""The position in a stateful loader's checkpoint, and its check against the pruner's."""

from __future__ import annotations

from typing import NamedTuple

from infobatch.epoch.clock import Clock, Idle, Spent


class ReadPosition(NamedTuple):
    """How far a loader has read: ``read`` samples of ``epoch``, over all ranks."""

    epoch: int
    read: int


def check_position(position: ReadPosition, clock: Clock, done: int) -> None:
    """Refuse a loader's checkpoint without the pruner's own, which has the scores.

    ``done`` samples of the clock's epoch are part of the pruner's state.
    """
    if position == ReadPosition(0, 0):
        return
    phase = clock.phase
    resumed = isinstance(phase, Spent) or (isinstance(phase, Idle) and phase.resumed)
    at_end = done == 0 and position.epoch == clock.finished == phase.epoch - 1
    if resumed and (at_end or position == ReadPosition(phase.epoch, done)):
        return
    ours = f"was saved after {done} samples of epoch {phase.epoch}" if resumed else "was not loaded"
    raise RuntimeError(
        f"The loader's state was saved after {position.read} samples of epoch {position.epoch}, but "
        f"train_data's {ours}. Save train_data.state_dict() with it, after the same update (and with "
        "snapshot_every_n_steps=1), and load both; train_data's alone is enough."
    )
