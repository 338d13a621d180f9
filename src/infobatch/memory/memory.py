"""One row per sample: its last score, and what the policy's tracks remember."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import Track
from infobatch.plan import FloatArray

SCORE = "score"
_BLOCK = 1 << 19  # bytes of a column folded at a time: in the CPU cache, and few calls per sample
Rows = npt.NDArray[np.intp] | slice


class Memory:
    """Named columns with one row per sample.

    Args:
        scores: the first column, ``score``: NaN where a sample was never seen.
        tracks: what else to remember; each adds its own columns.

    Raises:
        ValueError: if two tracks have a column of the same name.
    """

    def __init__(self, scores: FloatArray, tracks: Iterable[Track] = ()) -> None:
        self.tracks = tuple(dict.fromkeys(tracks))
        self.columns: dict[str, npt.NDArray[Any]] = {SCORE: scores}
        for track in self.tracks:
            if not track.optional:
                self._begin(track)

    def _begin(self, track: Track) -> None:
        """Add the columns of a track."""
        for name, column in track.begin(self.scores).items():
            if name in self.columns:
                raise ValueError(
                    f"{track!r} has a column {name!r}, which another track has, too. Expected "
                    "each name once: rename the column, or leave one of them out."
                )
            self.columns[name] = column

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def scores(self) -> FloatArray:
        """The last score of each sample."""
        return self.columns[SCORE]

    def fresh(self, scores: FloatArray, columns: Iterable[str]) -> Memory:
        """A new memory with the same tracks; of the optional ones, those that have some of ``columns``."""
        memory = Memory(scores, self.tracks)
        for track in self.tracks:
            if track.optional and set(columns) & set(_names(track)):
                memory._begin(track)
        return memory

    def restore(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over a checkpoint's columns.

        A column that the checkpoint lacks or has in another shape, such as a window of another
        length, starts from the checkpoint's scores.

        Args:
            columns: by name, each with one row per sample; ``score`` is among them.
        """
        fresh = self.fresh(columns[SCORE], columns)
        self.columns = {}
        for name, column in fresh.columns.items():
            saved = columns.get(name, column)
            fits = saved.shape == column.shape
            self.columns[name] = saved.astype(column.dtype, copy=False) if fits else column

    def copy(self) -> Memory:
        """Return an independent copy, to fold into without changing this one."""
        twin = Memory.__new__(Memory)
        twin.tracks = self.tracks
        twin.columns = {name: column.copy() for name, column in self.columns.items()}
        return twin

    def fold(
        self, blocks: Iterable[tuple[Rows, FloatArray]], epoch: int, channel: str | None = None
    ) -> None:
        """Fold in what an epoch recorded.

        Args:
            blocks: rows and their values, all finite; no row twice.
            epoch: the epoch that recorded them.
            channel: the name under which the values were reported in ``update(extras=…)``; None for
                the scores.
        """
        tracks = [track for track in self.tracks if track.channel == channel]
        names = [_names(track) for track in tracks]
        if any(track.optional for track in tracks):
            blocks = [(rows, values) for rows, values in blocks if len(values)]
            if not blocks:
                return
            for track, track_names in zip(tracks, names, strict=True):
                if not self.columns.keys() & track_names:
                    self._begin(track)
        if tracks:
            widest = max(
                _row_bytes(self.columns[name]) for track_names in names for name in track_names
            )
            blocks = _in_order(blocks, len(self), max(1, _BLOCK // widest))
        for rows, values in blocks:
            for track, track_names in zip(tracks, names, strict=True):
                # Before the scores are overwritten: a track may compare with the last one.
                old = {name: _taken(self.columns[name], rows) for name in track_names}
                for name, new in track.fold(old, values, epoch).items():
                    _put(self.columns[name], rows, new)
            if channel is None:
                self.scores[rows] = values


def _names(track: Track) -> list[str]:
    """The names of a track's columns."""
    return list(track.begin(np.empty(0, np.float32)))


def _in_order(
    blocks: Iterable[tuple[Rows, FloatArray]], count: int, size: int
) -> Iterator[tuple[Rows, FloatArray]]:
    """Yield the rows in ascending order, ``size`` at a time, for much faster memory access."""
    known = np.full(count, np.nan, np.float32)
    for rows, values in blocks:
        known[rows] = values
    for start in range(0, count, size):
        block = known[start : start + size]
        seen = np.flatnonzero(block == block)  # noqa: PLR0124 - not NaN; faster than isnan
        whole = len(seen) == len(block)
        yield ((slice(start, start + len(block)), block) if whole else (start + seen, block[seen]))


def _row_bytes(column: npt.NDArray[Any]) -> int:
    return column.itemsize * math.prod(column.shape[1:])


def _taken(column: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Return ``column[rows]``, five times as fast for rows of several numbers."""
    if column.ndim == 1 or isinstance(rows, slice):
        return column[rows]
    return column.take(rows, axis=0)


def _put(column: npt.NDArray[Any], rows: Rows, new: npt.NDArray[Any]) -> None:
    """Assign ``column[rows] = new``, much faster for rows of several numbers."""
    if column.ndim == 1 or isinstance(rows, slice):
        column[rows] = new
    else:  # each row as one item
        width = f"V{_row_bytes(column)}"
        items, new = (np.ascontiguousarray(part).view(width)[:, 0] for part in (column, new))
        # Rows come from `_in_order`, so they exist: without a check of each, this is faster.
        items.put(rows, new, mode="clip")
