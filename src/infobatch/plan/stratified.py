"""A draw by class: every class keeps its share, and is spread evenly over the epoch.

Which samples are kept: of a stratum of n samples, k. Of the m samples of a class in it, k m / n are kept,
rounded up or down at random: the numbers of all classes add up to k, and on average each of them is exact.
So each sample is kept with probability k / n, as in a draw without classes, but the mix of classes does not
vary.

In which order: imagine the kept samples in a ring, class by class, in each class stratum by stratum, and
otherwise in random order. Position p of the epoch visits the sample at ``(start + p * step) mod n`` in it.
With a step that has no factor in common with n, this visits every sample once. How evenly it does so follows
from the continued fraction of ``step / n``: if its quotients are small, any run of consecutive positions is
spread evenly over the ring, so that each class has its share of every batch, of whatever size, up to a few
samples. The same holds for every W-th position, the batches of one of W ranks, if the quotients of
``W * step / n`` are small. So of many random steps the one with the smallest quotients is used.

The start is uniform, so each sample is equally likely to be at each position; the order of the classes in
the ring is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.plan.groups import Counts, Groups, Numbering, group_sizes
from infobatch.plan.plan import Packing
from infobatch.plan.shuffle import rows_in_random_order
from infobatch.plan.strata import LabelArray

_RANKS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)  # whose batches are made even, too
_TRIES = 2000
_BLOCK = 1 << 16  # positions at a time, so that no array of all of them is needed


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
    generator = np.random.Generator(np.random.SFC64(class_stream))
    cells = _Cells.of(labels, classes, len(targets))
    quotas = class_quotas(cells.sizes, cells.strata, targets, generator)
    begins = _begins_in_ring(quotas, cells.classes, generator)
    ends = begins + quotas
    numbering = Numbering(begins)
    ring = np.empty(quotas.sum(), packing.dtype)
    strata = cells.strata.astype(packing.dtype)
    for numbers in rows_in_random_order(len(labels), order_stream):
        rows = numbers[numbers < len(labels)]
        order, cell, places = numbering.extend(cells.of_samples.take(rows, mode="clip"))
        kept = np.flatnonzero(places < ends.take(cell, mode="clip"))
        codes = packing.pack(
            rows.take(order.take(kept, mode="clip"), mode="clip"),
            strata.take(cell.take(kept, mode="clip"), mode="clip"),
        )
        ring[places.take(kept, mode="clip")] = codes
    return _walk(ring, generator)


def class_quotas(
    sizes: Counts,
    strata: npt.NDArray[np.intp],
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
    last = np.flatnonzero(
        np.diff(strata, append=-1)
    )  # of its stratum: a whole number, to the digit
    rounded[last] = np.cumsum(targets)[strata[last]]
    return np.diff(rounded, prepend=0)


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


@dataclass(frozen=True)
class _Cells:
    """The classes within the strata, numbered by stratum and then by class."""

    of_samples: Groups
    strata: npt.NDArray[np.intp]  # of each cell
    classes: npt.NDArray[np.intp]
    sizes: Counts

    @classmethod
    def of(cls, labels: LabelArray, classes: npt.NDArray[Any], num_strata: int) -> _Cells:
        """Find the cells of samples with these labels and classes."""
        num_classes = int(classes.max(initial=0)) + 1
        count = num_strata * num_classes
        cells = labels.astype(np.min_scalar_type(count))
        cells *= cells.dtype.type(num_classes)
        cells += classes.astype(cells.dtype, copy=False)
        codes = np.arange(count)
        if count > max(len(labels), 1 << 16):  # a table of all would be longer than the data
            codes, numbers = np.unique(cells, return_inverse=True)
            cells = numbers.astype(cells.dtype)
        strata, classes_of_cells = np.divmod(codes.astype(np.intp), num_classes)
        return cls(cells, strata, classes_of_cells, group_sizes(cells, len(codes)))


def _begins_in_ring(
    quotas: Counts, classes: npt.NDArray[np.intp], generator: np.random.Generator
) -> Counts:
    """Where each cell begins in the ring: class by class, the classes in random order."""
    places = generator.permutation(int(classes.max(initial=0)) + 1)
    in_ring = np.argsort(places[classes], kind="stable")
    begins = np.empty_like(quotas)
    begins[in_ring] = np.cumsum(quotas[in_ring]) - quotas[in_ring]
    return begins


def _walk(ring: npt.NDArray[Any], generator: np.random.Generator) -> npt.NDArray[Any]:
    """The ring's codes in steps of the same length, from a random place on."""
    count = len(ring)
    if count < 2:
        return ring
    step = choose_step(count, generator)
    start = int(generator.integers(count))
    codes = np.empty_like(ring)
    within_block = np.arange(min(_BLOCK, count)) * step % count
    for first in range(0, count, _BLOCK):
        into = codes[first : first + _BLOCK]
        at = within_block[: len(into)] + (start + first * step) % count
        np.subtract(at, count, out=at, where=at >= count)
        ring.take(at, out=into, mode="clip")
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
        going = np.flatnonzero(divisor)
        unfinished, dividend, divisor = unfinished[going], dividend[going], divisor[going]
    return largest
