"""A random order of rows that is computed rather than sorted or stored.

A keyed bijection of the numbers below a power of two says which row comes at which position. Positions
are taken in turn, and those whose number is not a row are passed over. So a shuffle needs no random keys,
no sort and no second copy, and the order of some rows does not depend on which others are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

# Odd numbers that are known to mix well, from Wellons' triple32, splitmix64 and murmur3.
# Statistical tests can tell three rounds from a random shuffle, but not four
# (tests/plan/test_shuffle.py); the fifth is a margin.
_MULTIPLIERS = {
    np.dtype(np.uint32): (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB, 0x85EBCA6B, 0xC2B2AE35),
    np.dtype(np.uint64): (
        0xBF58476D1CE4E5B9,
        0x94D049BB133111EB,
        0xFF51AFD7ED558CCD,
        0xC4CEB9FE1A85EC53,
        0x9FB21C651E98DF25,
    ),
}
_FEW_BITS = (
    16  # up to this many, a bijection has too few keys, and a permutation fits into the cache
)
_BLOCK = 1 << 16  # positions at a time, so that they stay in the CPU cache through all rounds


class Bijection:
    """A one-to-one mapping of the numbers below ``2**bits``, keyed by a stream of random numbers.

    It is meant for shuffling, not for security.
    """

    def __init__(self, bits: int, stream: np.random.SeedSequence) -> None:
        self.word: Any = np.uint32 if bits <= 32 else np.uint64
        multipliers = _MULTIPLIERS[np.dtype(self.word)]
        keys = stream.generate_state(len(multipliers), self.word)
        self._half = self.word((bits + 1) // 2)
        self._mask = self.word((1 << bits) - 1)
        self._rounds: list[Any] = list(zip(keys, map(self.word, multipliers), strict=True))

    def apply(self, numbers: npt.NDArray[Any], scratch: npt.NDArray[Any]) -> None:
        """Map each number in place."""
        for key, multiplier in self._rounds:
            np.add(numbers, key, out=numbers)
            np.multiply(numbers, multiplier, out=numbers)
            np.bitwise_and(numbers, self._mask, out=numbers)
            np.right_shift(numbers, self._half, out=scratch)
            np.bitwise_xor(numbers, scratch, out=numbers)


def rows_in_random_order(count: int, stream: np.random.SeedSequence) -> Iterator[npt.NDArray[Any]]:
    """Yield numbers in blocks, each row below ``count`` once and in random order.

    Numbers from ``count`` on are no rows, and the caller passes over them; fewer than half of all
    numbers are. The array of a block is used again for the next one.
    """
    bits = max(1, (count - 1).bit_length())
    if bits <= _FEW_BITS:
        yield np.random.Generator(np.random.SFC64(stream)).permutation(count)
        return
    bijection = Bijection(bits, stream)
    positions = np.arange(_BLOCK, dtype=bijection.word)
    rows, scratch = np.empty_like(positions), np.empty_like(positions)
    for start in range(0, 1 << bits, _BLOCK):
        np.add(positions, bijection.word(start), out=rows)
        bijection.apply(rows, scratch)
        yield rows
