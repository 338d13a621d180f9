"""The ``DataLoader`` iterator that asks a sampler for indices, observed but not kept alive.

A sampler is not told which loader iterates it. The call stack shows it, and is inspected once per
epoch: to tell whether a loop is still under way, how much of the epoch it has received, and whether
the loader reads the data that the sampler belongs to.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from types import FrameType
from typing import Any


class AskingLoader:
    """The iterator of a torch loader."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        # Worker processes fetch batches in advance, from the moment the iterator is created.
        per_worker = getattr(iterator, "_prefetch_factor", None) or 0
        self.read_ahead = int(getattr(iterator, "_num_workers", 0) * per_worker)
        self._source: weakref.ref[Any] | None = None
        with suppress(TypeError):  # not every iterator can be referred to weakly
            self._source = weakref.ref(iterator._sampler_iter)

    @property
    def alive(self) -> bool:
        """Whether a loop still holds the iterator."""
        return self._iterator() is not None

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

    def is_same(self, other: AskingLoader) -> bool:
        """Whether both are the same iterator: one with persistent workers is used again."""
        iterator = self._iterator()
        return iterator is not None and iterator is other._iterator()

    def has_same_source(self, other: AskingLoader) -> bool:
        """Whether both took their indices from the same iterator, which then never ends."""
        source = None if self._source is None else self._source()
        return source is not None and other._source is not None and source is other._source()


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
