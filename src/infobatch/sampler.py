"""The sampler walks a plan, for one rank, and knows how far it has come."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
from torch.utils.data import Sampler

_BLOCK = 1 << 14  # indices turned into Python numbers at a time


class Route(Protocol):
    """What a walk needs of the epoch: how many positions there are, and the indices at some."""

    def __len__(self) -> int: ...

    def indices(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The sample indices at the positions from ``start`` up to ``stop``."""
        ...


class Place(NamedTuple):
    """How far a loader has read: ``read`` samples of ``epoch``, over all ranks."""

    epoch: int
    read: int


class Walk:
    """How far one pass over an epoch has come: what was handed out, and how the loader asks.

    The counting costs nothing per index: the indices come from lists whose iterators know what they
    have left. torch's ``BatchSampler`` asks for an iterator once a batch, or with ``drop_last`` once
    for each place of a batch before it takes the first index; this is how a walk learns the batch
    size and whether an incomplete last batch will be dropped. Another loader that asks differently
    leaves both unknown.
    """

    def __init__(self) -> None:
        self._block: Iterator[int] = iter(())
        self._block_end = 0
        self._requests = 0
        self.length: int | None = None  # known once the first index was asked for
        self.batch_size: int | None = None
        self.drop_last = False
        self.broken_off = False  # the loop is known to have left it before its end
        self._iterator: weakref.ref[Any] | None = None

    def held_by(self, iterator: object) -> None:
        """Name the iterator that the loader holds while it is at this walk."""
        self._iterator = weakref.ref(iterator)

    @property
    def alive(self) -> bool:
        """Whether a loader is known to be still at it: it may take more, or deliver what it took.

        Without worker processes this is exact. A loader with workers lets go of the iterator as soon
        as it has taken everything, while batches are still to come.
        """
        if self._iterator is None or not self.asked_by_batch:
            return False
        iterator = self._iterator()
        return iterator is not None and getattr(iterator, "gi_frame", iterator) is not None

    @property
    def handed_out(self) -> int:
        """The number of indices that were taken so far."""
        return self._block_end - operator.length_hint(self._block)

    @property
    def asked_by_batch(self) -> bool:
        """Whether the loader asks as torch's ``BatchSampler`` does."""
        return self._requests > 0

    @property
    def dropped(self) -> int:
        """How many of the last indices are for a batch that the loader drops."""
        if not self.drop_last or self.batch_size is None or self.length is None:
            return 0
        return self.length % self.batch_size

    @property
    def deliverable(self) -> int:
        """How many samples the loader delivers in all; 0 before the walk has begun."""
        return 0 if self.length is None else self.length - self.dropped

    @property
    def exhausted(self) -> bool:
        """Whether all that the loader delivers was handed out."""
        return self.length is not None and self.handed_out >= self.deliverable

    def request(self) -> None:
        """Note that the loader asked for an iterator."""
        self._requests += 1
        if self._requests == 2 and self.handed_out:
            self.batch_size = self.handed_out

    def blocks(self, begin: Callable[[Walk], Route | None]) -> Iterator[Iterator[int]]:
        """Begin the epoch and hand out its indices, a block at a time."""
        if self._requests > 1:
            self.drop_last, self.batch_size = True, self._requests
        route = begin(self)
        if route is None:  # an epoch that is over already
            return
        self.length = len(route)
        for start in range(0, self.length, _BLOCK):
            stop = min(start + _BLOCK, self.length)
            self._block = iter(route.indices(start, stop).tolist())
            self._block_end = stop
            yield self._block

    def batches(
        self, begin: Callable[[Walk], Route | None], batch_size: int, drop_last: bool
    ) -> Iterator[list[int]]:
        """Begin the epoch and hand out its indices, a batch at a time."""
        self.batch_size, self.drop_last, self._requests = batch_size, drop_last, 1
        route = begin(self)
        if route is None:
            return
        self.length = len(route)
        for start in range(0, self.deliverable, batch_size):
            self._block_end = min(start + batch_size, self.deliverable)
            yield route.indices(start, self._block_end).tolist()


class WalkIterator:
    """The iterator that a loader gets.

    It refers to its walk but not the other way round, so that an epoch's memory is freed as soon as
    the loader lets go of it.
    """

    def __init__(self, begin: Callable[[Walk], Route | None]) -> None:
        self._walk = Walk()
        self._walk.held_by(self)
        self._indices = chain.from_iterable(self._walk.blocks(begin))

    def __iter__(self) -> Iterator[int]:
        self._walk.request()
        return self._indices

    def __next__(self) -> int:
        return next(self._indices)


class PlanSampler(Sampler[int]):
    """A ``torch.utils.data`` sampler over the current epoch's plan.

    Making an iterator has no side effect: the epoch begins when the first index is taken.
    """

    def __init__(
        self,
        begin: Callable[[Walk], Route | None],
        remaining: Callable[[], int],
        set_epoch: Callable[[int], None],
        place: Callable[[], Place],
        expect: Callable[[Place], None],
    ) -> None:
        self.begin = begin
        self._remaining = remaining
        self._set_epoch = set_epoch
        self._place = place
        self._expect = expect

    def __iter__(self) -> Iterator[int]:
        return WalkIterator(self.begin)

    def __len__(self) -> int:
        return self._remaining()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; saying it twice changes nothing."""
        self._set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """How far the loader has read, for a loader that keeps a state (torchdata's).

        Such a loader asks at each batch, so the scores are not in here: the state to go on from is
        that of the data set. Having this tells the loader not to skip what that one skips already.
        """
        return self._place()._asdict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Note what the loader's checkpoint says; the data set's own must agree when it is iterated."""
        self._expect(Place(**state))


class PlanBatchSampler(Sampler[list[int]]):
    """The same epochs in whole batches, for ``DataLoader(batch_sampler=…)``: no step per sample."""

    def __init__(self, sampler: PlanSampler, batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        walk = Walk()
        batches = walk.batches(self.sampler.begin, self.batch_size, self.drop_last)
        walk.held_by(batches)
        return batches

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; saying it twice changes nothing."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """See :meth:`PlanSampler.state_dict`."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """See :meth:`PlanSampler.load_state_dict`."""
        self.sampler.load_state_dict(state)
