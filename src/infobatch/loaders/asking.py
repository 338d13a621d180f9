"""The ``DataLoader`` iterator that asks a sampler for indices, observed but not kept alive.

A sampler is not told which loader iterates it. The call stack shows it, and is inspected once per
epoch: to tell whether a loop is still under way, how much of the epoch it has received, and whether
the loader reads the data that the sampler belongs to.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any


class AskingLoader:
    """The iterator of a torch loader, during one pass: persistent workers use it for several."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        # Worker processes fetch batches in advance, from the moment the iterator is created.
        per_worker = getattr(iterator, "_prefetch_factor", None) or 0
        self.read_ahead = int(getattr(iterator, "_num_workers", 0) * per_worker)
        source = iterator._sampler_iter  # another one in each pass
        self._source: Callable[[], Any]
        try:
            self._source = weakref.ref(source)
        except TypeError:  # not every iterator can be referred to weakly
            self._source = lambda: source

    @property
    def alive(self) -> bool:
        """Whether a loop still holds the iterator, in the same pass."""
        iterator = self._iterator()
        return iterator is not None and iterator._sampler_iter is self._source()

    @property
    def yielded(self) -> int:
        """How many batches the loop has received."""
        return int(getattr(self._iterator(), "_num_yielded", 0))

    @property
    def data_length(self) -> int | None:
        """How many samples the loader's data set has, if it has a length."""
        data: Any = getattr(self._iterator(), "_dataset", None)
        try:
            return len(data)
        except (TypeError, NotImplementedError):
            return None

    @property
    def data_kind(self) -> str:
        """The class of the loader's data set."""
        return type(getattr(self._iterator(), "_dataset", None)).__name__

    def is_same_pass(self, other: AskingLoader) -> bool:
        """Whether both are the same pass of the same iterator."""
        return self.alive and self._iterator() is other._iterator()


def find_asking_loader() -> AskingLoader | None:
    """The loader that is asking for an index, found on the call stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data.dataloader":
            iterator = frame.f_locals.get("self")
            if hasattr(iterator, "_sampler_iter"):
                return AskingLoader(iterator)
        frame = frame.f_back
    return None
