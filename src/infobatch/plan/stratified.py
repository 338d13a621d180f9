"""A draw by class: every class keeps its share, and is spread evenly over the epoch.

Which samples are kept: of a stratum of n samples, k. Of the m samples of a class in it, k m / n are kept,
rounded up or down at random: the numbers of all classes add up to k, and on average each of them is exact.
So each sample is kept with probability k / n, as in a draw without classes, but the mix of classes does not
vary. A class of more than 65,536 samples is drawn in equal parts, each as if it were a class; the number kept
of all its parts is its share, rounded.

In which order: imagine the kept samples in a ring, class by class, in each class stratum by stratum, and
otherwise in random order. Position p of the epoch visits the sample at ``(start + p * step) mod n`` in it.
With a step that has no factor in common with n, this visits every sample once. How evenly it does so follows
from the continued fraction of ``step / n``: if its quotients are small, any run of consecutive positions is
spread evenly over the ring, so that each class has its share of every batch, of whatever size, up to a few
samples. The same holds for every W-th position, the batches of one of W ranks, if the quotients of
``W * step / n`` are small. So of many random steps the one with the smallest quotients is used.

The start is uniform, so each sample is equally likely to be at each position; the order of the classes in
the ring is random.

How it is fast: a sample is moved three times, as a code. First all are sorted by class; then each block of up to
65,536 is sorted by stratum and random bits, within the CPU's cache; then the ring is read from its first place to
its last, and the kept codes are written to their positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infobatch.plan.groups import Counts, Numbering, begins_of_runs, group_sizes
from infobatch.plan.plan import Packing
from infobatch.plan.strata import LabelArray

_RANKS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)  # whose batches are made even, too
_TRIES = 2000
_BLOCK = 1 << 16  # samples at a time, so that temporaries are small; a place has 16 bits


def draw_by_class(
    labels: LabelArray,
    classes: npt.NDArray[Any],
    targets: Counts,
    packing: Packing,
    *,
    order_stream: np.random.SeedSequence,
    class_stream: np.random.SeedSequence,
) -> npt.NDArray[Any]:
    """Return the codes of the kept samples, ``targets[s]`` of stratum s, every class spread evenly.

    ``classes`` are the numbers of the samples' classes, from 0; not every number needs to occur.
    """
    if not targets.sum():
        return np.empty(0, packing.dtype)
    generator = np.random.Generator(np.random.SFC64(class_stream))
    ring, sizes = _class_by_class(labels, classes, packing, generator)
    blocks = list(_shuffled_cells(ring, sizes, packing, np.random.SFC64(order_stream)))
    strata = np.concatenate([block.strata for block in blocks])
    by_stratum = np.argsort(strata, kind="stable")
    cells = np.concatenate([block.sizes for block in blocks])
    quotas = np.empty_like(cells)
    quotas[by_stratum] = class_quotas(cells[by_stratum], strata[by_stratum], targets, generator)
    return _walk(blocks, quotas, packing, generator)


def class_quotas(
    sizes: Counts,
    strata: npt.NDArray[Any],
    targets: Counts,
    generator: np.random.Generator,
) -> Counts:
    """Return how many samples to keep of each cell, a class within a stratum.

    ``sizes`` and ``strata`` are those of the cells, sorted by stratum.

    >>> generator = np.random.default_rng(0)
    >>> class_quotas(np.array([6, 6, 4]), np.array([0, 0, 1]), np.array([8, 1]), generator)
    array([4, 4, 1])
    """
    members = np.bincount(strata, sizes, len(targets))
    share = targets / np.maximum(members, 1)
    first = (np.cumsum(members) - members)[strata]  # of the cell's stratum
    kept_before = (np.cumsum(targets) - targets)[strata]
    exact = kept_before + (np.cumsum(sizes) - first) * share[strata]
    rounded = np.floor(exact + generator.random()).astype(np.int64)
    # The last cell of each stratum: up to there it is a whole number, to the digit.
    last = np.flatnonzero(np.diff(strata, append=-1))
    rounded[last] = np.cumsum(targets)[strata[last]]
    quotas: Counts = np.diff(rounded, prepend=0)
    return quotas


def choose_step(count: int, generator: np.random.Generator) -> int:
    """Choose a step around a ring of ``count`` samples that spreads them evenly.

    >>> choose_step(10, np.random.default_rng(0)) in (3, 7)
    True
    """
    if count <= _TRIES:
        steps = 1 + generator.permutation(max(count - 1, 1))
    else:
        steps = generator.integers(1, count, size=2 * _TRIES)  # of which some have a common factor
    steps = steps[np.gcd(steps, count) == 1][:_TRIES]
    return int(steps[np.argmin(_unevenness(steps, count))]) if len(steps) else 1


class _Block(NamedTuple):
    """Up to 65,536 samples, cell by cell, and the cells' strata and sizes."""

    codes: npt.NDArray[Any]
    strata: LabelArray
    sizes: Counts


def _class_by_class(
    labels: LabelArray,
    classes: npt.NDArray[Any],
    packing: Packing,
    generator: np.random.Generator,
) -> tuple[npt.NDArray[Any], Counts]:
    """The codes of all samples, class by class, and the sizes of the classes, which are in random order."""
    sizes = group_sizes(classes, int(classes.max()) + 1)
    in_ring = generator.permutation(len(sizes))
    begins = np.empty_like(sizes)
    begins[in_ring] = np.cumsum(sizes[in_ring]) - sizes[in_ring]
    numbering = Numbering(begins)
    ring = np.empty(len(labels), packing.dtype)
    for start in range(0, len(labels), _BLOCK):
        block = labels[start : start + _BLOCK]
        order, places = numbering.extend(classes[start : start + _BLOCK])
        codes = packing.pack(np.arange(start, start + len(block)), block)
        ring[places] = codes.take(order, mode="clip")
    return ring, sizes[in_ring]


def _shuffled_cells(
    ring: npt.NDArray[Any], sizes: Counts, packing: Packing, bits: np.random.SFC64
) -> Iterator[_Block]:
    """Put the samples of each class in the ring into the order of their strata, and otherwise a random one.

    What is sorted are numbers of 64 bits: 8 to 24 for the cell, 16 for the place in the block, and random ones
    between them.
    """
    for start, parts in _blocks(sizes):
        block = ring[start : start + parts.sum()]
        cells = np.repeat(np.arange(len(parts), dtype=np.uint64) << 8, parts)
        cells |= block >> packing.row_bits
        free = 56 - (len(parts) - 1).bit_length()  # bits below the cell
        keys = bits.random_raw(len(block))
        keys >>= 64 - free + 16
        keys <<= 16
        keys |= np.arange(len(block), dtype=np.uint64)
        cells <<= free
        keys |= cells
        keys.sort()
        block[:] = block.take(keys.astype(np.uint16), mode="clip")
        keys >>= free
        begins = begins_of_runs(keys)
        yield _Block(block, keys[begins].astype(np.uint8), np.diff(begins, append=len(block)))


def _blocks(sizes: Counts) -> Iterator[tuple[int, Counts]]:
    """Where blocks of up to 65,536 samples begin, and the sizes of the classes in each.

    A class is in one block, unless it is larger; then it is cut into equal parts, which count as classes.
    """
    parts = -(-sizes // _BLOCK)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    totals, parts = np.repeat(sizes, parts), np.repeat(parts, parts)
    lengths = (number + 1) * totals // parts - number * totals // parts
    ends = np.cumsum(lengths)
    start = first = 0
    while first < len(ends):
        last = int(np.searchsorted(ends, start + _BLOCK, side="right"))
        yield start, lengths[first:last]
        start, first = int(ends[last - 1]), last


def _walk(
    blocks: list[_Block], quotas: Counts, packing: Packing, generator: np.random.Generator
) -> npt.NDArray[Any]:
    """The first codes of each cell, as many as its quota, in steps around the ring from a random place on."""
    count = int(quotas.sum())
    start = int(generator.integers(count))
    inverse = pow(choose_step(count, generator), -1, count)  # from place to place, in positions
    codes = np.empty(count, packing.dtype)
    numbers = np.arange(_BLOCK, dtype=np.int64)
    strides = numbers * inverse
    place = 0  # in the ring
    borders = np.cumsum([len(block.sizes) for block in blocks])
    for block, quota in zip(blocks, np.split(quotas, borders[:-1]), strict=True):
        kept = int(quota.sum())
        rest = block.sizes - quota
        places = numbers[:kept] + np.repeat(np.cumsum(rest) - rest, quota)
        positions = strides[:kept] + (place - start) * inverse % count
        positions -= positions // count * count  # several times faster than %
        codes[positions] = block.codes.take(places, mode="clip")
        place += kept
    return codes


def _unevenness(steps: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The largest quotient of each step's continued fractions; those of all samples together count double."""
    quotients = _largest_quotient(np.outer((1, *_RANKS), steps).ravel(), count)
    of_all, *of_ranks = quotients.reshape(-1, len(steps))
    unevenness: npt.NDArray[np.int64] = np.max([2 * of_all, *of_ranks], axis=0)
    return unevenness


def _largest_quotient(steps: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The largest quotient of the continued fraction of each ``step / count``, without its whole part."""
    largest = np.ones_like(steps)
    dividend, divisor = np.full_like(steps, count), steps % count
    unfinished = np.flatnonzero(divisor)
    dividend, divisor = dividend[unfinished], divisor[unfinished]
    while len(unfinished):
        quotient, rest = np.divmod(dividend, divisor)
        largest[unfinished] = np.maximum(largest[unfinished], quotient)
        dividend, divisor = divisor, rest
        remaining = np.flatnonzero(divisor)
        unfinished, dividend, divisor = (
            unfinished[remaining],
            dividend[remaining],
            divisor[remaining],
        )
    return largest
