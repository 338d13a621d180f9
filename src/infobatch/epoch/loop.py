"""What the clock has to know about the loop that iterates a loader."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from infobatch.epoch.route import Route
    from infobatch.epoch.walk import Walk


class Loop(Protocol):
    """One pass of a loader over an epoch, observed from outside.

    torch's loader is observed through the sampler's iterator (:class:`infobatch.epoch.walk.Walk`);
    for loaders that report more, or hide that iterator, see :mod:`infobatch.integrations.loaders`.
    """

    @property
    def alive(self) -> bool:
        """Whether the loop is known to be still running: more may be taken, or delivered."""
        ...

    @property
    def issued(self) -> int:
        """How many indices it has taken so far, where that is known."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether everything that the loader delivers was issued to it."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the loader itself reports that the loop is over."""
        ...

    @property
    def deliverable(self) -> int | None:
        """How many samples the loader delivers to this rank in all, where that is known."""
        ...

    def dropped_of(self, positions: int) -> int:
        """How many samples it leaves out, over all ranks, at the end of so many positions."""
        ...

    @property
    def reads_ahead(self) -> bool:
        """Whether it may take a batch's indices before the loop asks for that batch."""
        ...

    @property
    def consumed(self) -> bool:
        """Whether the loop is known to have received every batch."""
        ...


class Loaders(Protocol):
    """How loaders are recognised that shard batches, hide the sampler or count epochs themselves."""

    def check(self, *, same_length: bool) -> None:
        """Refuse a trainer that would train pruned epochs wrongly.

        ``same_length``: every epoch has as many batches as one over all data.
        """
        ...

    def shard_batches(self) -> bool:
        """Whether the loaders of this process divide the batches among the ranks."""
        ...

    def loop_of(self, walk: Walk | None, route: Route) -> Loop | None:
        """The loop of such a loader that begins an epoch now; None if there is none.

        ``walk`` is the sampler's side of it, which does not exist on ranks that are only sent
        batches.
        """
        ...

    def counter(self) -> int | None:
        """The loader's own number of the epoch that it begins now, if it counts."""
        ...


def asking_loader() -> Any | None:
    """The torch loader's iterator that is asking for an index just now, found on the call stack.

    The sampler has no other way to know its loader, and some questions need it: how far it reads
    ahead, and whether it is the one that asked in the epoch before. Called once per epoch.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data.dataloader":
            iterator = frame.f_locals.get("self")
            if hasattr(iterator, "_sampler_iter"):
                return iterator
        frame = frame.f_back
    return None
