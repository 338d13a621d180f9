"""Members of groups, numbered in the order in which they come, without sorting all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Groups = npt.NDArray[np.unsignedinteger[Any]]

# Members at a time, so that temporaries stay in the CPU cache; a place has 16 bits.
_BLOCK = 1 << 16


def group_sizes(groups: Groups, count: int) -> Counts:
    """Count the members of each of ``count`` groups."""
    step = max(_BLOCK, count)  # np.bincount widens numbers to eight bytes, and returns all groups
    blocks = range(0, len(groups), step)
    sizes = (np.bincount(groups[at : at + step], minlength=count) for at in blocks)
    return sum(sizes, np.zeros(count, np.int64))


def begins_of_runs(numbers: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where another number begins than the one before, and 0.

    >>> begins_of_runs(np.array([4, 4, 2, 2, 2, 4])).tolist()
    [0, 2, 5]
    """
    return np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])


class Numbering:
    """Numbers the members of each group from ``first`` on, a block at a time.

    >>> numbering = Numbering(np.array([10, 20]))
    >>> order, numbers = numbering.extend(np.array([0, 1, 0], np.uint8))
    >>> order.tolist(), numbers.tolist()
    ([0, 2, 1], [10, 11, 20])
    >>> numbering.extend(np.array([1, 0], np.uint8))[1].tolist()
    [12, 21]
    """

    def __init__(self, first: Counts) -> None:
        self._next = first.copy()

    def extend(self, groups: Groups) -> tuple[npt.NDArray[np.intp], Counts]:
        """Number the next members, at least one and at most 65,536.

        Returns:
            The members group by group, each as its place in ``groups``; and their numbers.
        """
        order, ordered = _by_group(groups)
        begins = begins_of_runs(ordered)
        lengths = np.diff(begins, append=len(groups))
        group = ordered[begins]
        numbers = np.arange(len(groups))
        numbers += np.repeat(self._next[group] - begins, lengths)
        self._next[group] += lengths
        return order, numbers


def _by_group(groups: Groups) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The places of the members, group by group, and their groups.

    The place is a part of what is sorted: numpy sorts numbers several times faster than it finds their order.
    """
    keys: npt.NDArray[Any] = groups.astype(np.uint32 if groups.dtype.itemsize <= 2 else np.int64)
    keys <<= 16
    keys |= np.arange(len(groups), dtype=keys.dtype)
    keys.sort()
    sorted_keys = keys.astype(np.int64, copy=False)
    return sorted_keys & (_BLOCK - 1), sorted_keys >> 16
