"""The position in a stateful loader's checkpoint, and its check against the pruner's."""

from __future__ import annotations

from typing import NamedTuple

from infobatch.epoch.clock import Clock


class ReadPosition(NamedTuple):
    """How far a loader has read: ``read`` samples of ``epoch``, over all ranks."""

    epoch: int
    read: int


def check_position(position: ReadPosition, clock: Clock, done: int) -> None:
    """Raise if a loader's checkpoint comes without the pruner's own, which has the scores.

    ``done`` samples of the clock's epoch are part of the pruner's state.
    """
    if position == ReadPosition(0, 0):
        return
    at_end = done == 0 and position.epoch == clock.finished == clock.epoch - 1
    if clock.resumed and (at_end or position == ReadPosition(clock.epoch, done)):
        return
    ours = "was not loaded"
    if clock.resumed:
        ours = f"was saved after {done} samples of epoch {clock.epoch}"
    raise RuntimeError(
        f"The loader's state was saved after {position.read} samples of epoch {position.epoch}, but "
        f"train_data's {ours}. Save train_data.state_dict() with it, after the same update (and with "
        "snapshot_every_n_steps=1), and load both; train_data's alone is enough."
    )
