"""A shuffle that needs no random keys besides the codes: encrypt, sort, decrypt.

Encrypted codes sort into a random order, and decrypting them restores the codes. Sorting thus takes
four bytes per code instead of eight, no two codes can tie, and the place of a code does not depend
on the other codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

# Odd numbers that are known to mix well, from Wellons' triple32, splitmix64 and murmur3.
# Statistical tests can tell two rounds from a random shuffle, but not three
# (tests/plan/test_shuffle.py).
_MULTIPLIERS = {
    np.dtype(np.uint32): (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB),
    np.dtype(np.uint64): (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xFF51AFD7ED558CCD),
}
_BLOCK = 1 << 15  # codes at a time, so that they stay in the CPU cache through all rounds


class Cipher:
    """A bijection on the unsigned integers of a type, keyed by a stream of random numbers.

    It is meant for shuffling, not for security.
    """

    def __init__(self, code: type[np.uint32 | np.uint64], stream: np.random.SeedSequence) -> None:
        multipliers = _MULTIPLIERS[np.dtype(code)]
        bits = 8 * np.dtype(code).itemsize
        keys = stream.generate_state(len(multipliers), code)
        self._half = code(bits // 2)
        self._rounds: list[Any] = list(zip(keys, map(code, multipliers), strict=True))
        self._inverses = [code(pow(multiplier, -1, 1 << bits)) for multiplier in multipliers]

    def encrypt(self, codes: npt.NDArray[Any]) -> None:
        """Encrypt each code in place."""
        for block, high in _blocks(codes):
            for key, multiplier in self._rounds:
                np.add(block, key, out=block)
                np.multiply(block, multiplier, out=block)
                np.bitwise_xor(block, np.right_shift(block, self._half, out=high), out=block)

    def decrypt(self, codes: npt.NDArray[Any]) -> None:
        """Undo ``encrypt``, in place."""
        backwards = list(zip(reversed(self._rounds), reversed(self._inverses), strict=True))
        for block, high in _blocks(codes):
            for (key, _), inverse in backwards:
                # The upper half did not change, so the step is its own inverse.
                np.bitwise_xor(block, np.right_shift(block, self._half, out=high), out=block)
                np.multiply(block, inverse, out=block)
                np.subtract(block, key, out=block)


def _blocks(codes: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield the codes a block at a time, each with a scratch array of the same size."""
    scratch = np.empty(min(_BLOCK, len(codes)), codes.dtype)
    for start in range(0, len(codes), _BLOCK):
        block = codes[start : start + _BLOCK]
        yield block, scratch[: len(block)]
