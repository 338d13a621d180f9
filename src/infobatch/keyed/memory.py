"""What is remembered about each key: a memory whose rows are sorted by the keys' hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.keyed.chance import Hashes
from infobatch.keyed.record import Visits
from infobatch.keyed.table import rows_of
from infobatch.memory.memory import SCORE, Memory
from infobatch.memory.tracks import Track


class KeyedMemory:
    """The hashes of all keys seen so far, in ascending order, and a memory with a row for each."""

    def __init__(self, tracks: Sequence[Track]) -> None:
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.rows = Memory(np.empty(0, np.float32), tracks)

    def __len__(self) -> int:
        return len(self.hashes)

    def fold(self, visits: Visits, epoch: int) -> int:
        """Fold in an epoch's visits, each key once; return how many keys are new."""
        rows = rows_of(visits.hashes, self.hashes)
        new = visits.hashes[rows < 0]
        if len(new):
            self._add(new)
            rows = rows_of(visits.hashes, self.hashes)
        for name, values in visits.values.items():
            finite = np.isfinite(values)
            block = (rows, values) if finite.all() else (rows[finite], values[finite])
            self.rows.fold([block], epoch, None if name == SCORE else name)
        return len(new)

    def _add(self, new: Hashes) -> None:
        old_hashes, old = self.hashes, self.rows
        self.hashes = np.concatenate([old_hashes, new])
        self.hashes.sort()
        self.rows = old.fresh(np.full(len(self.hashes), np.nan, np.float32), old.columns)
        places = self.hashes.searchsorted(old_hashes)
        for name, column in self.rows.columns.items():
            column[places] = old.columns[name]

    def restore(self, hashes: Hashes, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over a checkpoint's rows, in any order."""
        order = hashes.argsort()
        self.hashes = hashes[order]
        self.rows = Memory(np.empty(0, np.float32), self.rows.tracks)
        self.rows.restore({name: column[order] for name, column in columns.items()})

    def scores_of(self, hashes: Hashes) -> npt.NDArray[np.float32]:
        """The last score of each of some keys, NaN where there is none."""
        rows = rows_of(hashes, self.hashes)
        known = np.full(len(hashes), np.nan, np.float32)
        known[rows >= 0] = self.rows.scores[rows[rows >= 0]]
        return known
