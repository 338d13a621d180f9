"""Which epoch is it? A state machine with one phase, which each event changes.

Iterating, ``update``, ``len``, ``set_epoch`` and checkpoints all need the answer. A loop does not
report what it is doing; it is observed, through :class:`infobatch.epoch.loop.Loop`, at the next
iterator or ``set_epoch``:

=============== ============================== =============== ================= ==================
phase           first index of a new iterator  update          set_epoch(same)   set_epoch(another)
=============== ============================== =============== ================= ==================
Idle            Offered                        error [1]_      stay              Idle, or Spent [2]_
Offered         Offered, to the new one        Training        stay              close, Idle
Training        loop over: close, Offered(e+1) stay            stay; if it was   close, Idle
                still alive: see below         or Complete     left: once more
Complete        Offered(e+1)                   error           once more         Idle
Ambiguous       as Training                    only if sure    stay              close, Idle
Spent           nothing, then Idle             error [1]_      Idle              Idle, or Spent
=============== ============================== =============== ================= ==================

.. [1] With the index in the batch no iterator is needed: Training.
.. [2] A resumed loop that asks for the epoch whose end was loaded: nothing is left of it.

An iterator that begins before the first update becomes the loop, unless it is gone when that update
comes and an older one is still alive: then it was only a look at the data.

If an iterator begins while another loop is in the middle of the epoch, there are two cases. If that
loop fetches its batches on demand, the iterator only looks at the data (Ambiguous: updates are
accepted as long as they can only be that loop's). Otherwise it begins the next epoch, provided that
the other loop is gone at the first update and has not continued.

``len`` and checkpoints only read. An epoch is closed (its losses are exchanged between the ranks,
folded into the memory and recorded) when its last update arrives, or else when the next epoch
begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from infobatch.epoch.loop import Loop

Others = tuple[tuple[Loop, int], ...]


@dataclass(frozen=True)
class Idle:
    """Nothing of the epoch was issued yet; ``resumed`` if a checkpoint continues here."""

    epoch: int
    resumed: bool = False


@dataclass(frozen=True)
class Offered:
    """An iterator has taken indices, but nothing was updated; ``rival`` was running before it.

    ``others`` are iterators that were offered the same epoch and were alive when a newer one began,
    each with the number of indices that it had taken by then; ``earlier`` are those of the previous
    epoch, in the same form.
    """

    epoch: int
    loop: Loop
    rival: Loop | None = None
    others: Others = ()
    earlier: Others = ()


@dataclass(frozen=True)
class Training:
    """Losses arrive; there is no loop if only the batches show which samples they contain."""

    epoch: int
    loop: Loop | None
    others: Others = ()


@dataclass(frozen=True)
class Ambiguous:
    """Losses arrive from ``loop``, and another iterator has looked at the epoch meanwhile."""

    epoch: int
    loop: Loop | None
    others: Others = ()


@dataclass(frozen=True)
class Complete:
    """Everything that the loader delivers was updated, and the epoch was closed."""

    epoch: int
    loop: Loop | None


@dataclass(frozen=True)
class Spent:
    """A resumed loop is at an epoch that is already over; ``epoch`` comes after it."""

    epoch: int


Phase = Idle | Offered | Training | Ambiguous | Complete | Spent


class Clock:
    """Knows the epoch; calls ``close`` when one ends that its last update did not close."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.phase: Phase = Idle(0)
        self.finished = -1  # the last epoch that was completed
        self._close = close

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one."""
        return self.phase.epoch

    @property
    def loop(self) -> Loop | None:
        """The loop that iterates this epoch, or has iterated it."""
        return getattr(self.phase, "loop", None)

    @property
    def is_over(self) -> bool:
        """Whether the epoch is over."""
        phase = self.phase
        if isinstance(phase, Offered):  # less than a batch was left, which the loader drops
            return phase.loop.exhausted and phase.loop.deliverable == 0
        if isinstance(phase, Training | Ambiguous):
            return phase.loop is not None and phase.loop.ended
        return isinstance(phase, Complete)

    @property
    def was_left(self) -> bool:
        """Whether a loop has trained on part of the epoch and then left it."""
        trained = isinstance(self.phase, Training | Ambiguous | Complete)
        return trained and self.loop is not None and not self.loop.alive

    # Events.

    def begin(self, loop: Loop) -> bool:
        """Handle an iterator's first index; return whether it is now the epoch's loop.

        If not, it only looks at the data (Ambiguous), or nothing is left for it (Idle, after
        Spent).
        """
        phase = self.phase
        if isinstance(phase, Spent):
            self.phase = Idle(phase.epoch, resumed=True)
            return False
        if isinstance(phase, Training | Ambiguous):
            rival = phase.loop if self._is_under_way() else None
            if rival is not None and not rival.reads_ahead:
                self.phase = Ambiguous(phase.epoch, rival, phase.others)
                return False
            earlier = _alive(phase.others)
            if rival is not None:
                earlier += ((rival, rival.issued),)
            self._leave()
            self.phase = Offered(phase.epoch + 1, loop, rival, earlier=earlier)
            return True
        if isinstance(phase, Complete) or self.is_over:
            self._leave()
            self.phase = Offered(phase.epoch + 1, loop)
            return True
        self._warn_of_no_update()
        if isinstance(phase, Offered):  # a rival's batch may still come, after any number of looks
            others = _alive((*phase.others, (phase.loop, phase.loop.issued)))
            self.phase = replace(phase, loop=loop, others=others)
        else:
            self.phase = Offered(phase.epoch, loop)
        return True

    def identify(self, loop: Loop) -> None:
        """Replace the loop that has just begun with one that reports more about itself."""
        assert isinstance(self.phase, Offered)
        self.phase = replace(self.phase, loop=loop)

    def expect_update(self, call: str, *, by_index: bool) -> Loop | None:
        """Refuse losses whose epoch is unknown, before any of them are recorded.

        For an epoch's first losses, return their loop: the newest iterator, unless that one was
        only a look at the data and is gone, while an older one is still alive.
        """
        phase = self.phase
        if isinstance(phase, Idle | Spent) and not by_index:
            raise RuntimeError(
                f"{call} was called before the sampler issued a sample of epoch {phase.epoch}. "
                "Expected DataLoader(…, sampler=train_data.sampler), iterated from its start "
                "(again after load_state_dict or set_epoch); or pass index=."
            )
        if not isinstance(phase, Offered):
            return None
        rival, loop = phase.rival, phase.loop
        # One that has taken more since then delivers its batches, even if it released its iterator.
        continued = any(other.issued > taken for other, taken in phase.earlier)
        if continued or (rival is not None and rival.alive):
            raise self._two_loops(call)
        others = _alive(phase.others)
        if others and not loop.alive and (loop.consumed or not loop.exhausted):
            loop, others = others[-1][0], others[:-1]
        self.phase = replace(phase, loop=loop, others=others)
        return loop

    def update(self, loop: Loop | None) -> None:
        """Note recorded losses; ``loop`` is the one they belong to if no iterator has begun."""
        phase = self.phase
        if isinstance(phase, Idle | Spent):
            self.phase = Training(phase.epoch, loop)
        elif isinstance(phase, Offered):
            self.phase = Training(phase.epoch, phase.loop, phase.others)

    def refuse_if_ambiguous(self, call: str, *, waiting: int) -> None:
        """Refuse an update that may belong to the other iterator.

        ``waiting`` samples were issued to the loop itself and await an update.
        """
        phase = self.phase
        if isinstance(phase, Ambiguous):
            assert phase.loop is not None
            gone = not phase.loop.alive and not phase.loop.exhausted
            if gone or not waiting:
                raise self._two_loops(call)

    def complete(self) -> None:
        """Note that the epoch's last update has arrived and the epoch was closed."""
        self.finished = self.phase.epoch
        self.phase = Complete(self.phase.epoch, self.loop)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, as the caller asks."""
        phase = self.phase
        resumed = isinstance(phase, Spent) or (isinstance(phase, Idle) and phase.resumed)
        if epoch == phase.epoch:
            if isinstance(phase, Spent):
                self.phase = Idle(epoch, resumed=True)
            elif self.was_left and (self.is_over or not self._is_draining()):
                self._leave()
                self.phase = Idle(epoch)  # the same epoch again
        elif resumed and epoch == self.finished:
            self.phase = Spent(phase.epoch)
        else:
            self._warn_of_no_update()
            self._leave()
            self.phase = Idle(epoch)

    def load(self, epoch: int, finished: int) -> None:
        """Continue from a checkpoint."""
        self.finished = finished
        self.phase = Idle(epoch, resumed=True)

    def _leave(self) -> None:
        if self.is_over:
            self.finished = self.phase.epoch
        if not isinstance(self.phase, Complete):
            self._close()

    def _warn_of_no_update(self) -> None:
        phase = self.phase
        if not isinstance(phase, Offered) or self.is_over:
            return
        if phase.loop.consumed or any(loop.consumed for loop, _ in phase.others):
            warnings.warn(
                f"The loader was iterated to its end in epoch {phase.epoch} without a single update(), "
                "so nothing is known about its samples and the epoch does not count. Pass the losses "
                "of each batch to train_data.update(); to only read the data, use a loader without "
                "this sampler.",
                stacklevel=2,
            )

    def _is_under_way(self) -> bool:
        loop = self.loop
        return loop is not None and loop.alive and not loop.ended

    def _is_draining(self) -> bool:
        """Whether everything was issued, and updates are still to come."""
        return self.loop is not None and self.loop.exhausted

    def _two_loops(self, call: str) -> RuntimeError:
        return RuntimeError(
            f"{call} cannot tell which of two iterators its batch is from: a second one was started "
            f"in epoch {self.phase.epoch} before the first had ended. Expected one after the other; to "
            "look at the data in the meantime, use another loader, without this sampler."
        )


def _alive(loops: Others) -> Others:
    return tuple((loop, taken) for loop, taken in loops if loop.alive)
