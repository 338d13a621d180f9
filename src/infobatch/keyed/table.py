"""The table of an epoch: what was decided about each known key, shared with the loader's workers.

It lies in two mapped files: the sorted hashes with a directory into them, rewritten only when there
are new keys, and the epoch's labels. A third file has the number of the current table, eight bytes
that are stored at once after the table is complete. Workers look at it for every sample, so those
that live for many epochs, however they were started, follow without a message and without a copy.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infobatch.keyed.chance import Hashes
from infobatch.plan.draw import DROPPED
from infobatch.plan.strata import LabelArray

NUMBER, DECODED = 0, 1  # what the words of the file "current" mean
_PER_BUCKET = 4  # hashes in a bucket of the directory, about: mostly one cache line
_HEADER = 3  # words: the number of the keys' file, the number of keys, the bits of the directory


class Table:
    """One epoch's decisions.

    ``labels`` are DROPPED where a key is left out. ``asked`` is 1 where a worker has kept the key
    for this epoch: so the training process knows by which epoch's table a sample was chosen.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        decisions = _mapped(folder / f"decisions-{number}")
        self.keys_number, count, bits = np.frombuffer(decisions, np.uint64, _HEADER).tolist()
        self.hashes, directory = _split(_mapped(folder / f"keys-{self.keys_number}"), count, bits)
        pairs = np.frombuffer(decisions, np.uint8, 2 * count, 8 * _HEADER)
        self.labels, self.asked = pairs[::2], pairs[1::2]  # side by side: one cache miss for both
        # Single items are read several times as fast through memoryviews.
        self._shift = 64 - bits
        self._hashes, self._directory, self._pairs = self.hashes.data, directory.data, pairs.data

    def keeps(self, key_hash: int) -> bool:
        """Whether a key is kept, and note that it was; one that is not known always is."""
        bucket = key_hash >> self._shift
        end = self._directory[bucket + 1]
        row = bisect_left(self._hashes, key_hash, self._directory[bucket], end)
        if row == end or self._hashes[row] != key_hash:
            return True
        if self._pairs[2 * row] == DROPPED:
            return False
        self._pairs[2 * row + 1] = 1
        return True

    def rows(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        """The rows of several keys, -1 where one is not known."""
        return rows_of(hashes, self.hashes)


class Board:
    """The folder in which a training process publishes its tables, one after the other."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="infobatch-"))
        weakref.finalize(self, _remove, self.folder, os.getpid())
        (self.folder / "current").write_bytes(bytes(16))
        self.current = open_current(self.folder)
        self.table: Table | None = None

    def publish(self, hashes: Hashes, labels: LabelArray) -> Table:
        """Write a table and make it the current one."""
        last, number = self.table, int(self.current[NUMBER]) + 1
        same_keys = last is not None and hashes is last.hashes
        keys_number = last.keys_number if last is not None and same_keys else number
        bits = max(0, (len(hashes) // _PER_BUCKET).bit_length() - 1)
        if not same_keys:
            with (self.folder / f"keys-{keys_number}").open("xb") as file:
                file.write(hashes.data)
                file.write(_directory(hashes, bits).data)
        with (self.folder / f"decisions-{number}").open("xb") as file:
            file.write(np.array([keys_number, len(hashes), bits], np.uint64).data)
            pairs = np.zeros((len(labels), 2), np.uint8)
            pairs[:, 0] = labels
            file.write(pairs.data)
        self.table = Table(self.folder, number)
        self.current[NUMBER] = number
        for path in self.folder.glob("*-*"):  # a worker that has mapped one keeps it
            if path.name not in (f"keys-{keys_number}", f"decisions-{number}"):
                with suppress(OSError):  # on Windows, while it is open: a later table removes it
                    path.unlink()
        return self.table


def open_current(folder: Path) -> memoryview[int]:
    """The shared words: the number of the current table, and whether samples came decoded."""
    words: memoryview[int] = memoryview(_mapped(folder / "current")).cast("Q")
    return words


def rows_of(hashes: Hashes, known: Hashes) -> npt.NDArray[np.intp]:
    """The positions of hashes in sorted ones, -1 where one is missing."""
    if not len(known):
        return np.full(len(hashes), -1)
    rows = known.searchsorted(hashes)
    rows[rows == len(known)] = 0
    rows[known[rows] != hashes] = -1
    return rows


def _directory(hashes: Hashes, bits: int) -> npt.NDArray[np.unsignedinteger]:
    """Where the hashes with each value of their highest bits begin, and the end."""
    rows = _row_type(len(hashes))
    if not bits:
        return np.array([0, len(hashes)], rows)
    firsts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return np.append(hashes.searchsorted(firsts), len(hashes)).astype(rows)


def _split(
    keys: mmap.mmap, count: int, bits: int
) -> tuple[Hashes, npt.NDArray[np.unsignedinteger]]:
    hashes = np.frombuffer(keys, np.uint64, count)
    return hashes, np.frombuffer(keys, _row_type(count), (1 << bits) + 1, 8 * count)


def _row_type(count: int) -> type[np.unsignedinteger]:
    return np.uint32 if count < 1 << 32 else np.uint64


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a forked worker
        shutil.rmtree(folder, ignore_errors=True)
