"""An order in which every class is spread evenly over the epoch.

Imagine the samples in a ring, class by class, each class in random order. Position p of the epoch visits the
sample at ``(start + p * step) mod n`` in it. With a step that has no factor in common with n, this visits
every sample once. How evenly it does so follows from the continued fraction of ``step / n``: if its
quotients are small, any run of consecutive positions is spread evenly over the ring, so that each class
has its share of every batch, of whatever size, up to a few samples. The same holds for every W-th position,
the batches of one of W ranks, if the quotients of ``W * step / n`` are small. So of some random steps the
one with the smallest quotients is used.

The start is uniform, so each sample is equally likely to be at each position; the order of the classes in
the ring is random.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_RANKS = (2, 4, 8, 16)  # whose batches are made even, too; other numbers come close
_TRIES = 100
_BLOCK = 1 << 16  # positions at a time, so that no array of all of them is needed


def spread_classes(
    codes: npt.NDArray[Any], classes: npt.NDArray[Any], generator: np.random.Generator
) -> npt.NDArray[Any]:
    """Return the codes in an order that spreads each class evenly.

    Within a class, the codes keep their order, from a random one on: pass them in random order.
    ``classes`` are the numbers of the codes' classes, from 0; not every number needs to occur.
    """
    count = len(codes)
    if count < 2:
        return codes
    num_classes = int(classes.max()) + 1
    places = generator.permutation(num_classes).astype(np.min_scalar_type(num_classes - 1))
    ring = codes[np.argsort(places[classes], kind="stable")]  # up to 65,536 classes, a radix sort
    step = choose_step(count, generator)
    start = int(generator.integers(count))
    spread = np.empty_like(ring)
    within_block = np.arange(min(_BLOCK, count)) * step % count
    for first in range(0, count, _BLOCK):
        into = spread[first : first + _BLOCK]
        at = within_block[: len(into)] + (start + first * step) % count
        np.subtract(at, count, out=at, where=at >= count)
        ring.take(at, out=into, mode="clip")
    return spread


def choose_step(count: int, generator: np.random.Generator) -> int:
    """Choose a step around a ring of ``count`` samples that spreads them evenly.

    >>> choose_step(10, np.random.default_rng(0)) in (3, 7)
    True
    """
    if count <= _TRIES:
        steps = 1 + generator.permutation(max(count - 1, 1))
    else:
        steps = generator.integers(1, count, size=4 * _TRIES)  # of which some have a common factor
    possible: list[int] = [step for step in steps.tolist() if math.gcd(step, count) == 1][:_TRIES]
    return min(possible or [1], key=lambda step: _unevenness(step, count))


def _unevenness(step: int, count: int) -> int:
    """The largest quotient of the continued fraction; those of all samples together count double."""
    of_all = 2 * _largest_quotient(step, count)
    return max(of_all, *(_largest_quotient(ranks * step, count) for ranks in _RANKS))


def _largest_quotient(step: int, count: int) -> int:
    """The largest quotient of the continued fraction of ``step / count``, without its whole part."""
    step, largest = step % count, 1
    while step:
        quotient, rest = divmod(count, step)
        largest = max(largest, quotient)
        count, step = step, rest
    return largest
