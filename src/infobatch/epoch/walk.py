"""One pass over an epoch as seen by the sampler: what was issued, and how the loader asks."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from infobatch.epoch.batching import Batches, EvenBatches, FixedBatches, ShrunkBatches
from infobatch.epoch.loop import asking_loader
from infobatch.epoch.route import Route

_BLOCK = 1 << 14  # indices turned into Python numbers at a time
Begin = Callable[["Walk"], Route | None]


class Walk:
    """The progress of one pass over an epoch.

    Counting costs nothing per index: the indices come from lists whose iterators know what they
    have left. torch's ``BatchSampler`` asks for an iterator once per batch, or with ``drop_last``
    once for each sample of a batch before it takes the first index; this is how a walk learns the
    batch size and whether an incomplete last batch will be dropped. If another loader asks
    differently, both stay unknown.
    """

    ended = False  # the sampler's iterator cannot tell whether the loop is over

    def __init__(self) -> None:
        self._block: Iterator[int] = iter(())
        self._block_end = 0
        self._requests = 0
        self._route: Route | None = None  # known once the first index was requested
        self._iterator: weakref.ref[Any] | None = None
        self._ahead: int | None = None  # batches or samples that were waiting at the first update
        self._ran_dry = False  # the loader asked for more than there was
        self._prefetched: int | None = None  # batches that torch's loader reads ahead
        self.source: weakref.ref[Any] | None = None  # what torch's loader takes its batches from
        self.batches: Batches | None = None  # where they are known
        self.batch_size: int | None = None
        self.drop_last = False
        self.shrinks = False
        self.left_early = False  # the loop is known to have left before the end

    # For the sampler.

    def held_by(self, iterator: object) -> None:
        """Name the iterator that the loader holds during this walk."""
        self._iterator = weakref.ref(iterator)

    def request(self) -> None:
        """Note that the loader asked for an iterator."""
        self._requests += 1
        if self._requests == 2 and self.issued:
            self._set_batch_size(self.issued)

    def blocks(self, begin: Begin) -> Iterator[Iterator[int]]:
        """Begin the epoch and issue its indices, a block at a time."""
        if self._requests > 1:
            self.drop_last = True
        route = self._begin(begin)
        if route is None:  # an epoch that is over already
            return
        if self.drop_last:
            self._set_batch_size(self._requests)
        for start in range(0, len(route), _BLOCK):
            stop = min(start + _BLOCK, len(route))
            self._block = iter(route.indices(start, stop).tolist())
            self._block_end = stop
            yield self._block
        self._ran_dry = True

    def in_batches(
        self, begin: Begin, size: int, drop_last: bool, shrinks: bool, *, even: bool = False
    ) -> Iterator[list[int]]:
        """Begin the epoch and issue its indices, a batch at a time."""
        self.drop_last, self.shrinks, self._requests = drop_last, shrinks, 1
        route = self._begin(begin)
        if route is None:
            return
        self._set_batch_size(size, even=even)
        assert self.batches is not None
        for batch in range(len(self.batches)):
            start, self._block_end = self.batches.bounds(batch)
            yield route.indices(start, self._block_end).tolist()
        self._ran_dry = True

    def _begin(self, begin: Begin) -> Route | None:
        loader = asking_loader()
        if loader is not None:
            with suppress(TypeError):  # not every iterator can be referred to weakly
                self.source = weakref.ref(loader._sampler_iter)
            workers = getattr(loader, "_num_workers", 0)
            self._prefetched = workers * (getattr(loader, "_prefetch_factor", None) or 0)
        self._route = begin(self)
        return self._route

    def _set_batch_size(self, size: int, *, even: bool = False) -> None:
        assert self._route is not None
        self.batch_size = size
        self.batches = batches_of(
            self._route, size, drop_last=self.drop_last, shrinks=self.shrinks, even=even
        )

    # The loop, as seen from here.

    @property
    def alive(self) -> bool:
        """Whether a loader is known to be still running: it may take more, or deliver what it has.

        Without worker processes this is exact. A loader with workers releases the iterator as soon
        as it has taken everything, while batches are still to come.
        """
        if self._iterator is None or not self.asked_by_batch:
            return False
        iterator = self._iterator()
        return iterator is not None and getattr(iterator, "gi_frame", iterator) is not None

    @property
    def issued(self) -> int:
        """How many indices have been issued so far."""
        return self._block_end - operator.length_hint(self._block)

    @property
    def asked_by_batch(self) -> bool:
        """Whether the loader asks as torch's ``BatchSampler`` does."""
        return self._requests > 0

    @property
    def deliverable(self) -> int:
        """How many samples the loader delivers in total; 0 before the walk has begun."""
        if self._route is None:
            return 0
        if self.drop_last and self.batches is not None:
            return self.batches.deliverable
        return self._route.length

    @property
    def exhausted(self) -> bool:
        """Whether everything that the loader delivers was issued."""
        return self._route is not None and self.issued >= self.deliverable

    def dropped_of(self, positions: int) -> int:
        """How many samples belong to a batch that the loader drops, over all ranks."""
        if self._route is None or not self.drop_last or self.batch_size is None:
            return 0
        ranks = self._route.ranks
        if ranks.global_order:  # the loader shards the batches, and drops an incomplete round
            return positions % (self.batch_size * ranks.world_size)
        if self.shrinks and positions == len(self._route):
            return (positions - self.deliverable) * ranks.walkers
        return positions % self.batch_size * ranks.walkers

    @property
    def reads_ahead(self) -> bool:
        """Whether more than the current batch was waiting for an update at the first update."""
        if self._ahead is None or self.batches is None:
            return True
        return self._ahead > (self.batches.largest if isinstance(self.batches, FixedBatches) else 1)

    @property
    def consumed(self) -> bool:
        """Whether torch's loader has delivered every batch, or all but those it had read ahead."""
        if not self._ran_dry or self._prefetched is None or self.batches is None:
            return False
        return self._prefetched == 0 or len(self.batches) > self._prefetched + 1

    # Samples that may be waiting for their update.

    def note_first_update(self, *, counts: bool) -> None:
        """Remember how far the loader has read ahead: it will never be further.

        This is only known if losses are matched to samples by counting.
        """
        if not counts:
            return
        if self.batches is None or isinstance(self.batches, FixedBatches):
            self._ahead = self.issued
        else:  # they differ in size, so count them
            self._ahead = self.batches.number(max(self.issued - 1, 0)) + 1

    def most_waiting(self, updated: int) -> int:
        """The most samples that can be waiting for an update if no update was missed."""
        if self._ahead is None:
            return self.issued
        if self.batches is None or isinstance(self.batches, FixedBatches):
            return self._ahead
        return self.batches.end(updated, self._ahead) - updated

    def rest_of_batch(self, updated: int) -> int | None:
        """How many samples of the current batch have no update yet; None if unknown."""
        if self.batches is not None:
            return self.batches.end(updated) - updated
        return self.issued - updated if self.asked_by_batch else None


def batches_of(route: Route, size: int, *, drop_last: bool, shrinks: bool, even: bool) -> Batches:
    """Divide a route into batches."""
    if shrinks:
        full = int(route.full_counts.max())
        return ShrunkBatches(size, drop_last, len(route), full=full, offset=route.offset, even=even)
    if even:
        return EvenBatches(size, len(route), offset=route.offset)
    return FixedBatches(size, drop_last, len(route))
