"""The bounds of an epoch's batches, including batches that shrink with the epoch."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


class Batches(Protocol):
    """One rank's positions in an epoch, divided into batches."""

    largest: int  # samples of the largest batch

    @property
    def deliverable(self) -> int:
        """How many positions are in a batch; the others are dropped."""
        ...

    def __len__(self) -> int: ...

    def bounds(self, batch: int) -> tuple[int, int]:
        """The first position of a batch, and the position after its last."""
        ...

    def end(self, position: int, batches: int = 1) -> int:
        """The end of the last of ``batches`` batches, the first of which contains ``position``."""
        ...

    def number(self, position: int) -> int:
        """The batch that a position is in."""
        ...


class FixedBatches:
    """Batches of the same size, except for the last; a pruned epoch has fewer of them."""

    def __init__(self, size: int, drop_last: bool, length: int) -> None:
        self.largest = size
        self._length = length
        self._count = length // size if drop_last else -(-length // size)

    def __len__(self) -> int:
        return self._count

    @property
    def deliverable(self) -> int:
        """See :class:`Batches`."""
        return min(self._count * self.largest, self._length)

    def bounds(self, batch: int) -> tuple[int, int]:
        """See :class:`Batches`."""
        start = batch * self.largest
        return start, min(start + self.largest, self._length)

    def number(self, position: int) -> int:
        """See :class:`Batches`."""
        return position // self.largest

    def end(self, position: int, batches: int = 1) -> int:
        """See :class:`Batches`."""
        return min((self.number(position) + batches) * self.largest, self._length)


class EvenBatches:
    """As many batches, but of nearly equal size: they differ by at most one sample.

    ``length`` positions remain, after ``offset`` that a loaded checkpoint has visited.
    """

    def __init__(self, size: int, length: int, *, offset: int = 0) -> None:
        self._total, self._offset = offset + length, offset
        self._count = -(-self._total // size)  # of the whole epoch, even after a resume
        self.largest = -(-self._total // max(self._count, 1))
        self._first = self._in_epoch(0) if length else self._count

    def _in_epoch(self, position: int) -> int:
        """The batch that contains a position, counted from the epoch's start."""
        return ((self._offset + position + 1) * self._count - 1) // self._total

    def _edge(self, batch: int) -> int:
        return (self._first + batch) * self._total // max(self._count, 1) - self._offset

    def __len__(self) -> int:
        return self._count - self._first

    @property
    def deliverable(self) -> int:
        """See :class:`Batches`."""
        return self._total - self._offset

    def bounds(self, batch: int) -> tuple[int, int]:
        """See :class:`Batches`."""
        return max(self._edge(batch), 0), self._edge(batch + 1)

    def number(self, position: int) -> int:
        """See :class:`Batches`."""
        return self._in_epoch(position) - self._first if self._total else 0

    def end(self, position: int, batches: int = 1) -> int:
        """See :class:`Batches`."""
        return self._edge(min(self.number(position) + batches, len(self)))


class ShrunkBatches:
    """As many batches as an epoch over all data has, each smaller in proportion.

    A batch stands for the full epoch's batch with the same number; with ``even`` these differ by at
    most one sample. ``length`` positions remain, after ``offset`` that a loaded checkpoint has
    visited; ``full`` is the number of positions in an epoch over all data.
    """

    def __init__(
        self,
        size: int,
        drop_last: bool,
        length: int,
        *,
        full: int,
        offset: int = 0,
        even: bool = False,
    ) -> None:
        total = offset + length
        count = full // size if drop_last else -(-full // size)
        if total * size < full:
            raise ValueError(
                f'batch_sampler(batch_size={size}, shrink="batch") cannot divide {total} samples '
                f"among the {count} batches of an epoch over all data: some would be empty. Use a "
                'larger batch_size, prune less, or use shrink="epoch".'
            )
        batches = np.arange(count + 1)
        if even:
            self._full_edges = batches * full // count
            edges = batches * total // count
        else:
            self._full_edges = np.minimum(batches * size, full)
            edges = self._full_edges * total // full
        edges -= offset
        self._first = int(np.searchsorted(edges[:-1], 0, side="right")) - 1
        if edges[-1] <= 0:  # everything that is not dropped was visited
            self._first = count
        self._sizes = np.diff(edges)[self._first :]
        self._edges = edges[self._first :].clip(min=0).tolist()
        self._factors = np.ones(len(self._edges))
        self.largest = max(self._sizes.tolist(), default=size)

    def __len__(self) -> int:
        return len(self._edges) - 1

    @property
    def deliverable(self) -> int:
        """See :class:`Batches`."""
        return int(self._edges[-1])

    def bounds(self, batch: int) -> tuple[int, int]:
        """See :class:`Batches`."""
        return self._edges[batch], self._edges[batch + 1]

    def number(self, position: int) -> int:
        """See :class:`Batches`."""
        return bisect_right(self._edges, position) - 1

    def end(self, position: int, batches: int = 1) -> int:
        """See :class:`Batches`."""
        return int(self._edges[min(self.number(position) + batches, len(self))])

    def full_position(self, position: int) -> int:
        """The position in an epoch over all data that corresponds to a position in this one."""
        full_edges = self._full_edges[self._first :]
        if position >= self.deliverable:
            return int(full_edges[-1])
        batch = self.number(position)
        left, size = self._edges[batch + 1] - position, int(self._sizes[batch])
        start, stop = int(full_edges[batch]), int(full_edges[batch + 1])
        return int(stop + -left * (stop - start) // size)

    def compare(self, counts: Counts, full_counts: Counts) -> None:
        """Compute how much smaller each batch is than the full epoch's batch that it stands for.

        ``counts`` and ``full_counts`` are the numbers of positions of each rank: if a rank has
        fewer than another, its last positions are repeats, which do not count.
        """
        real = _real(counts, np.array(self._edges))
        if len(real):  # a resume may have split the first batch; it still counts as whole
            real[0] *= self._sizes[0] / max(self._edges[1] - self._edges[0], 1)
        full = _real(full_counts, self._full_edges[self._first :])
        self._factors = np.append(real / np.maximum(full, 1), 1.0)  # 1 where a batch is dropped

    def factors(self, positions: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The factors from :meth:`compare` for the batches of some positions."""
        batches = np.searchsorted(self._edges, positions, side="right") - 1
        factors: npt.NDArray[np.float64] = self._factors[batches]
        return factors


def _real(counts: Counts, edges: Counts) -> npt.NDArray[np.float64]:
    """How many positions between the edges are not repeats, over all ranks."""
    reached: Counts = np.minimum(counts[:, None], edges).sum(0)
    return np.diff(reached).astype(np.float64)
