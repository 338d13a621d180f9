"""Which epoch is it? A state machine with one phase, which each event changes.

Iterating, ``update``, ``len``, ``set_epoch`` and checkpoints all need the answer. A loop does not
report what it is doing; its :class:`~infobatch.epoch.walk.Walk` is observed, at the next iterator
or ``set_epoch``:

=============== ============================== =============== ================= ==================
phase           first index of a new iterator  update          set_epoch(same)   set_epoch(another)
=============== ============================== =============== ================= ==================
Idle            Offered                        error [1]_      stay              Idle, or Spent [2]_
Offered         Offered, to the new one        Training        stay [3]_         close, Idle
Training        loop over: close, Offered(e+1) stay            stay; if it was   close, Idle
                still alive: error             or Complete     left: once more
Complete        Offered(e+1)                   error           once more         Idle
Spent           nothing, then Idle             error [1]_      Idle              Idle, or Spent
=============== ============================== =============== ================= ==================

.. [1] With the index in the batch no iterator is needed: Training.
.. [2] A resumed loop that asks for the epoch whose end was loaded: nothing is left of it.
.. [3] It also says that an earlier epoch was left on purpose, if its iterator is still held.

One loop at a time: before the first update any number of iterators may look at the epoch, and the
newest walks it. From then on a second iterator is an error while the first is still held. (A
loader with workers takes its first indices before ``batches = iter(loader)`` can let go of an old
iterator, so there the error comes with the next update. With ``persistent_workers=True`` torch
restarts the loop's own iterator, which looks like a loop that was left: there is no error.)

``len`` and checkpoints only read. An epoch is closed (its losses are exchanged between the ranks,
folded into the memory and recorded) when its last update arrives, or else when the next epoch
begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from infobatch.epoch.walk import Walk


@dataclass(frozen=True)
class Idle:
    """Nothing of the epoch was issued yet; ``resumed`` if a checkpoint continues here."""

    epoch: int
    resumed: bool = False


@dataclass(frozen=True)
class Offered:
    """An iterator has taken indices, but nothing was updated.

    ``replaced`` is the previous epoch's walk, if it was still held when this one began.
    """

    epoch: int
    replaced: Walk | None = None


@dataclass(frozen=True)
class Training:
    """Losses arrive, in one loop or, if batches show which samples they contain, without one."""

    epoch: int


@dataclass(frozen=True)
class Complete:
    """Everything that the loader delivers was updated, and the epoch was closed."""

    epoch: int


@dataclass(frozen=True)
class Spent:
    """A resumed loop is at an epoch that is already over; ``epoch`` comes after it."""

    epoch: int


class Clock:
    """Knows the epoch; calls ``close`` when one ends that its last update did not close.

    It counts the epochs of the whole training. A loop that was resumed may count its own from 0:
    ``offset`` is the epoch that the caller calls 0, unknown after a load until the first call.

    Args:
        close: closes the epoch.
        find_walk: returns the epoch's walk, or one of which nothing is known if none has begun.
    """

    def __init__(self, close: Callable[[], None], find_walk: Callable[[], Walk]) -> None:
        self.phase: Idle | Offered | Training | Complete | Spent = Idle(0)
        self.finished = -1  # the last epoch that was completed
        self.offset: int | None = 0
        self._close = close
        self._find_walk = find_walk

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one."""
        return self.phase.epoch

    @property
    def is_over(self) -> bool:
        """Whether the epoch is over."""
        if isinstance(self.phase, Offered):  # less than a batch was left, which the loader drops
            walk = self._find_walk()
            return walk.exhausted and walk.deliverable == 0
        if isinstance(self.phase, Training):
            return self._find_walk().ended
        return isinstance(self.phase, Complete)

    @property
    def would_repeat(self) -> bool:
        """Whether ``set_epoch`` with the same number begins the epoch once more: its loop was left."""
        walk = self._find_walk()
        if not isinstance(self.phase, Training | Complete) or not walk.has_begun or walk.alive:
            return False
        return self.is_over or not walk.exhausted  # else updates are still to come

    @property
    def resumed(self) -> bool:
        """Whether a checkpoint was loaded and nothing was iterated since."""
        return isinstance(self.phase, Spent) or (
            isinstance(self.phase, Idle) and self.phase.resumed
        )

    # Events.

    def begin(self, *, at_once: bool = False) -> bool:
        """Handle a new iterator's first index; return whether the epoch is now walked by it.

        If not, nothing is left for it (Idle, after Spent).

        Args:
            at_once: the index is taken while the iterator is being created, so that it may yet
                replace the previous one.
        """
        phase = self.phase
        if isinstance(phase, Spent):
            self.phase = Idle(phase.epoch, resumed=True)
            return False
        if isinstance(phase, Training | Complete) or self.is_over:
            walk = self._find_walk()
            held = isinstance(phase, Training) and walk.alive
            if held and not at_once:
                raise _two_loops(phase.epoch)
            self._leave()
            self.phase = Offered(phase.epoch + 1, replaced=walk if held else None)
        else:
            self._warn_of_no_update()
            if isinstance(phase, Idle):
                self.phase = Offered(phase.epoch)
        self.offset = self.offset or 0  # a caller that continues without a call counts as we do
        return True

    def check_turn(self, walk: Walk, *, of_this_epoch: bool) -> None:
        """Raise if an earlier iterator asks for more, unless the newer one has only looked at its epoch."""
        phase = self.phase
        if isinstance(phase, Offered) and phase.replaced is walk:
            raise _two_loops(phase.epoch - 1)
        if isinstance(phase, Complete) or not of_this_epoch:
            raise _stale_iterator()
        if isinstance(phase, Training) and self._find_walk().alive:
            raise _two_loops(phase.epoch)

    def check_update(self, call: str, *, by_index: bool) -> None:
        """Raise if it is unknown which epoch losses belong to, before any of them are recorded."""
        if isinstance(self.phase, Idle | Spent) and not by_index:
            raise RuntimeError(
                f"{call} was called before the sampler issued a sample of epoch {self.epoch}. "
                "Expected DataLoader(…, sampler=train_data.sampler), iterated from its start "
                "(again after load_state_dict or set_epoch); or pass index=."
            )
        if isinstance(self.phase, Offered):
            replaced = self.phase.replaced
            # One that has come to its end since then has delivered what it had left.
            if replaced is not None and (replaced.alive or replaced.received_all):
                raise _two_loops(self.epoch - 1)

    def update(self) -> None:
        """Note recorded losses."""
        if not isinstance(self.phase, Training | Complete):
            self.phase = Training(self.phase.epoch)

    def complete(self) -> None:
        """Note that the epoch's last update has arrived and the epoch was closed."""
        self.finished = self.phase.epoch
        self.phase = Complete(self.phase.epoch)

    def meant_by(self, epoch: int, *, counter: int | None, in_mid_epoch: bool) -> int:
        """The epoch that the caller calls ``epoch``.

        In the first call after a load, an epoch before the loaded one is the start of the caller's
        own count. (But a loop that was stopped after its epoch's last step asks for that epoch
        again.) ``counter`` is the loader's own count, if the loader is the caller: it always starts
        from 0.
        """
        if self.offset is None:
            is_end = epoch == self.finished and not in_mid_epoch
            restarts = counter == epoch or (epoch < self.epoch and not is_end)
            self.offset = self.epoch - epoch if restarts else 0
        return epoch + self.offset

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, in our count."""
        phase = self.phase
        if epoch == phase.epoch:
            if isinstance(phase, Spent):
                self.phase = Idle(epoch, resumed=True)
            elif isinstance(phase, Offered):
                self.phase = Offered(epoch)  # the caller knows that it was left
            elif self.would_repeat:
                self._leave()
                self.phase = Idle(epoch)  # the same epoch again
        elif self.resumed and epoch == self.finished:
            self.phase = Spent(phase.epoch)
        else:
            self._warn_of_no_update()
            self._leave()
            self.phase = Idle(epoch)

    def load(self, epoch: int, finished: int) -> None:
        """Continue from a checkpoint."""
        self.finished, self.offset = finished, None
        self.phase = Idle(epoch, resumed=True)

    def _leave(self) -> None:
        if self.is_over:
            self.finished = self.phase.epoch
        if not isinstance(self.phase, Complete):
            self._close()

    def _warn_of_no_update(self) -> None:
        offered = isinstance(self.phase, Offered) and not self.is_over
        if offered and self._find_walk().ran_through:
            warnings.warn(
                f"The loader was iterated to its end in epoch {self.epoch} without a single update(), "
                "so nothing is known about its samples and the epoch does not count. Pass the losses "
                "of each batch to train_data.update(); to only read the data, use a loader without "
                "this sampler.",
                stacklevel=2,
            )


def _two_loops(epoch: int) -> RuntimeError:
    """The error for a second iterator in the middle of an epoch."""
    return RuntimeError(
        f"A second iterator of this sampler asks for samples in the middle of epoch {epoch}, while the "
        "first is still in use, so their losses could not be told apart. Expected one loop at a time. "
        "To look at the data meanwhile, use a loader of its own, without this sampler: "
        "DataLoader(train_data.dataset, …). To leave this epoch (an interrupted notebook cell keeps "
        f"its iterator), call set_epoch({epoch + 1}) first."
    )


def _stale_iterator() -> RuntimeError:
    """The error for an iterator that is kept for longer than its epoch."""
    return RuntimeError(
        "An iterator of an epoch that is over asks this sampler for more samples; their losses would "
        "belong to no epoch. Expected a new iterator for each epoch, as in: for batch in loader"
    )
