"""What the clock needs to know about the loop that iterates a loader."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from infobatch.epoch.route import Route
    from infobatch.epoch.walk import Walk


class Loop(Protocol):
    """One pass of a loader over an epoch, observed from the outside.

    PyTorch's loader is observed through the sampler's iterator
    (:class:`infobatch.epoch.walk.Walk`); for loaders that report more, or hide that iterator, see
    :mod:`infobatch.integrations.loaders`.
    """

    @property
    def alive(self) -> bool:
        """Whether the loop is known to be still running: it may take or deliver more."""
        ...

    @property
    def issued(self) -> int:
        """How many indices it has taken so far, if that is known."""
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
        """How many samples the loader delivers to this rank in total, if that is known."""
        ...

    def dropped_of(self, positions: int) -> int:
        """How many samples it drops at the end of ``positions`` positions, over all ranks."""
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
    """Recognises loaders that shard batches, hide the sampler or count epochs themselves."""

    def check(self, *, same_length: bool) -> None:
        """Refuse a trainer that would train pruned epochs wrongly.

        ``same_length`` means that every epoch has as many batches as one over all data.
        """
        ...

    def shard_batches(self) -> bool:
        """Whether the loaders of this process divide the batches among the ranks."""
        ...

    def loop_of(self, walk: Walk | None, route: Route) -> Loop | None:
        """The loop of such a loader that is beginning an epoch; None if there is none.

        ``walk`` is the sampler's side of it, which does not exist on ranks that only receive
        batches.
        """
        ...

    def counter(self) -> int | None:
        """The loader's own number for the epoch that it is beginning, if it counts epochs."""
        ...


def asking_loader() -> Any | None:
    """The iterator of the torch loader that is asking for an index, found on the call stack.

    The sampler has no other way to know its loader, which is needed to tell how far it reads ahead,
    and whether it is the same one as in the previous epoch. Called once per epoch.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data.dataloader":
            iterator = frame.f_locals.get("self")
            if hasattr(iterator, "_sampler_iter"):
                return iterator
        frame = frame.f_back
    return None
