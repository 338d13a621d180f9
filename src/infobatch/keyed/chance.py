"""Keys as 64-bit numbers, and the random number that decides about a key in an epoch.

Both are pure functions, so that every rank, and every run that resumes, decides alike. Strings and
bytes are hashed by BLAKE2b. Integers are permuted: different ones (of 64 bits) never collide.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from infobatch.plan.draw import DROPPED
from infobatch.plan.strata import LabelArray, Strata

Key = str | bytes | SupportsIndex
Keys = Sequence[Key] | torch.Tensor | npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_from_bytes = int.from_bytes
_BLOCK = 1 << 16  # keys at a time, so that temporaries stay in the CPU cache


def hash_key(key: Key) -> int:
    """The 64-bit number of a key.

    Raises:
        TypeError: if it is neither a string nor bytes nor an integer.
    """
    if isinstance(key, str):
        text = key
        try:
            key = text.encode()
        except UnicodeEncodeError:  # names in an archive need not be valid text
            key = text.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return _from_bytes(blake2b(key, digest_size=8).digest(), "little")
    return _mixed_integer(operator.index(key) & _MASK)


def hash_keys(keys: Keys) -> Hashes:
    """The 64-bit numbers of several keys, quickly if they are an array of integers."""
    if isinstance(keys, torch.Tensor):
        keys = keys.cpu().numpy()
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu":
        # A negative number becomes its two's complement, as in hash_key().
        return _mixed(
            keys.astype(np.int64 if keys.dtype.kind == "i" else np.uint64).view(np.uint64)
        )
    if isinstance(keys, np.ndarray):
        keys = keys.tolist()
    return np.fromiter(map(hash_key, keys), np.uint64, len(keys))


def random_bits(hashes: Hashes, *, seed: int, epoch: int) -> Hashes:
    """64 random bits for each key, a function of (seed, epoch, key)."""
    first, second = np.random.SeedSequence((seed, epoch)).generate_state(2, np.uint64)
    return _mixed(_mixed(hashes ^ first) ^ second)


def is_kept(bits: Hashes, keep: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether samples with these random bits are kept, each with its probability."""
    uniform = (bits >> np.uint64(11)) * 2.0**-53  # exact: a float64 has 53 bits
    return uniform < keep


def draw(strata: Strata, hashes: Hashes, *, seed: int, epoch: int) -> LabelArray:
    """The label of each sample, DROPPED where the epoch leaves it out, independently of all others."""
    keep = np.array([1.0, *strata.keep])
    if (keep == 1).all():
        return np.ascontiguousarray(strata.labels)
    labels = np.empty_like(strata.labels)
    for start in range(0, len(labels), _BLOCK):
        block = slice(start, start + _BLOCK)
        wanted = strata.labels[block]
        kept = is_kept(random_bits(hashes[block], seed=seed, epoch=epoch), keep[wanted])
        labels[block] = np.where(kept, wanted, np.uint8(DROPPED))
    return labels


def class_weights(strata: Strata) -> npt.NDArray[np.float64]:
    """The weight of each label; 1 over the probability unless the rule has set another one."""
    if strata.weights == "inverse":
        return 1 / np.array([1.0, *strata.keep])
    ones = (1.0,) * len(strata.keep)
    return np.array([1.0, *(ones if strata.weights == "ones" else strata.weights)])


def _mixed(values: Hashes) -> Hashes:
    """Permute 64-bit numbers so that every bit depends on all (the finaliser of SplitMix64)."""
    mixed = values + np.uint64(_STEP)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_FIRST)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mixed_integer(value: int) -> int:
    """The same for one number, much faster than with numpy."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)
