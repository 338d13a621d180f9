"""One pass over an epoch as seen by the sampler: what was issued, and how the loader asks."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from infobatch.loaders.asking import AskingLoader, find_asking_loader
from infobatch.loaders.known import PreparedLoader
from infobatch.plan.batching import Batches, EvenBatches, FixedBatches, ShrunkBatches
from infobatch.step.route import Route

_BLOCK = 1 << 14  # indices turned into Python numbers at a time
Begin = Callable[["Walk"], Route | None]


class Cut(NamedTuple):
    """How a route is cut into batches of ``size`` samples; see :meth:`infobatch.Pruner.batch_sampler`."""

    size: int
    drop_last: bool = False
    shrinks: bool = False
    even: bool = False
    pad: bool = False

    def batches(self, route: Route) -> Batches:
        """The batches of a route."""
        if self.shrinks:
            full = int(route.full_counts.max())
            return ShrunkBatches(
                self.size,
                self.drop_last,
                len(route),
                full=full,
                offset=route.offset,
                even=self.even,
            )
        if self.even:
            return EvenBatches(self.size, len(route), offset=route.offset)
        return FixedBatches(self.size, self.drop_last, len(route))


class Walk:
    """The progress of one pass over an epoch.

    Counting costs nothing per index: the indices come from lists whose iterators know what they
    have left. torch's ``BatchSampler`` asks for an iterator once per batch, or with ``drop_last``
    once for each sample of a batch before it takes the first index; this is how a walk learns the
    batch size and whether an incomplete last batch will be dropped. If another loader asks
    differently, both stay unknown.
    """

    def __init__(self) -> None:
        self._block: Iterator[int] = iter(())
        self._block_end = 0
        self._requests = 0
        self._iterator: weakref.ref[Any] | None = None
        self._asked_past_end = False  # the loader asked for another batch after the last
        self._ahead: int | None = None  # batches or samples that were waiting at the first update
        self.route: Route | None = None  # known once the first index was requested
        self.loader: AskingLoader | None = None  # torch's loader, if that is what asks
        self.prepared: PreparedLoader | None = None  # a loader around it that reports more
        self.batches: Batches | None = None  # where they are known
        self.cut: Cut | None = None  # and how they are cut
        self.left = False  # the loop is known to have left before the end
        self.left_after_update = False  # and it had reported every batch that it took

    @property
    def has_sampler(self) -> bool:
        """Whether this rank's sampler is iterated, so that there is an iterator to be observed."""
        return self._iterator is not None

    @property
    def has_begun(self) -> bool:
        """Whether a loader is at work: on this rank, or on another one that sends the batches."""
        return self.has_sampler or self.prepared is not None

    # For the sampler.

    def held_by(self, iterator: object) -> None:
        """Name the iterator that the loader holds during this walk."""
        self._iterator = weakref.ref(iterator)

    def request(self) -> None:
        """Note that the loader asked for an iterator."""
        self._requests += 1
        if self._requests == 2 and self.issued and self.route is not None:
            self.cut = Cut(self.issued)
            self.batches = self.cut.batches(self.route)

    def walk_along(self, route: Route) -> None:
        """Begin with a route, now or once more after a look by another walk."""
        self.route = route
        route.pad(self.cut.size if self.cut is not None and self.cut.pad else 1)
        self.batches = None if self.cut is None else self.cut.batches(route)

    def blocks(self, begin: Begin) -> Iterator[Iterator[int]]:
        """Begin the epoch and issue its indices, a block at a time."""
        if self._requests > 1:
            self.cut = Cut(self._requests, drop_last=True)
        self.loader = find_asking_loader()
        route = begin(self)
        if route is None:  # an epoch that is over already
            return
        for start in range(0, len(route), _BLOCK):
            stop = min(start + _BLOCK, len(route))
            self._block = iter(route.indices(start, stop).tolist())
            self._block_end = stop
            yield self._block
        self._asked_past_end = True

    def in_batches(
        self, begin: Begin, check_turn: Callable[[Walk], None], cut: Cut
    ) -> Iterator[list[int]]:
        """Begin the epoch and issue its indices, a batch at a time."""
        self.cut, self._requests = cut, 1
        self.loader = find_asking_loader()
        route = begin(self)
        if route is None or self.batches is None:
            return
        for batch in range(len(self.batches)):
            check_turn(self)
            start, self._block_end = self.batches.bounds(batch)
            yield route.indices(start, self._block_end).tolist()
        self._asked_past_end = True

    # What is known about the loop.

    @property
    def alive(self) -> bool:
        """Whether a loop is known to be still under way: it may take or receive more."""
        if self.left or self.ended:
            return False
        if self.loader is not None:
            return self.loader.alive and not self.received_all
        if self._iterator is None:
            return self.prepared is not None
        iterator = self._iterator() if self.asked_by_batch else None
        return iterator is not None and getattr(iterator, "gi_frame", iterator) is not None

    @property
    def ended(self) -> bool:
        """Whether the loader itself reports that the loop is over."""
        return self.prepared is not None and self.prepared.ended

    @property
    def issued(self) -> int:
        """How many indices have been issued so far."""
        return self._block_end - operator.length_hint(self._block)

    @property
    def taken(self) -> int:
        """How many of the indices were in batches that the loop has received."""
        if self.loader is None or not self.loader.alive or self.batches is None:
            return min(self.issued, self.to_issue)
        yielded = self.loader.yielded
        return self.batches.end(0, yielded) if yielded else 0

    @property
    def asked_by_batch(self) -> bool:
        """Whether the loader asks as torch's ``BatchSampler`` does."""
        return self._requests > 0

    @property
    def _sharding(self) -> PreparedLoader | None:
        """The loader that divides what it takes among several ranks, if this one does."""
        prepared = self.prepared
        return prepared if prepared is not None and prepared.world_size > 1 else None

    @property
    def to_issue(self) -> int:
        """How many indices the loader takes in total; 0 before the walk has begun."""
        if self.route is None:
            return 0
        return self.route.length if self.batches is None else self.batches.deliverable

    @property
    def deliverable(self) -> int | None:
        """How many samples the loader delivers to this rank in total, if that is known."""
        if not self.has_sampler or self.route is None:
            return None
        sharding = self._sharding
        return self.to_issue if sharding is None else sharding.share_of(len(self.route))

    @property
    def exhausted(self) -> bool:
        """Whether everything that the loader delivers was issued to it."""
        if self._sharding is not None:
            return self._sharding.at_last_batch
        return self.route is not None and self.issued >= self.to_issue

    @property
    def received_all(self) -> bool:
        """Whether a loop that is still held has received every batch."""
        if self.loader is None or self.batches is None or self.prepared is not None:
            return False
        return self.loader.yielded >= len(self.batches)

    @property
    def ran_through(self) -> bool:
        """Whether the loop has received every batch, or all but those that workers had read ahead."""
        if self.loader is None or self.batches is None or not self._asked_past_end:
            return False
        ahead = self.loader.read_ahead
        return not ahead or len(self.batches) > ahead + 1

    def dropped_of(self, positions: int) -> int:
        """How many samples at the end of ``positions`` positions the loader drops, over all ranks."""
        if self.prepared is not None:
            return self.prepared.dropped_of(positions)
        if self.route is None or self.cut is None or not self.cut.drop_last:
            return 0
        ranks = self.route.ranks
        if ranks.global_order:  # the loader shards the batches, and drops an incomplete round
            return positions % (self.cut.size * ranks.world_size)
        if self.cut.shrinks and positions == len(self.route):
            return (positions - self.to_issue) * ranks.walkers
        return positions % self.cut.size * ranks.walkers

    # Samples that may be waiting for their update.

    def note_first_update(self) -> None:
        """Remember how far the loader has read ahead: it will never be further.

        This is only known if losses are matched to samples by counting.
        """
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
