"""Greedy facility location: exact, lazy, and in blocks, for any similarity.

The value of a set S is Σ_i max_{j ∈ S} s_ij: how well each sample is represented by the most
similar chosen one. A sample's gain can only decrease as others are chosen (the value is
submodular), so an old gain is an upper bound, and most gains need not be recomputed before the next
choice (Minoux 1978).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from infobatch.coresets.chance import Indices
from infobatch.coresets.vectors import blocks

MATRIX_BYTES = 2**31  # a larger similarity matrix is not kept, only the rows used last
FIRST_BATCH, LARGEST_BATCH = 4, 512
ROUNDING = 16  # times the precision of a float
Similarity = Callable[[torch.Tensor], torch.Tensor]  # rows -> (len(rows), samples)
Gains = npt.NDArray[np.float64]


def greedy_facility_location(similarity: Similarity, count: int, k: int) -> Indices:
    """Choose ``k`` samples, each with the largest gain Σ_i max(0, s_ij − max_{chosen} s_i).

    The first is the one most similar to all; ties go to the lowest index.
    """
    rows = _Rows(similarity, count)
    bounds, least = _first_gains(rows, count)
    best = int(bounds.argmax())
    chosen = np.empty(k, np.int64)
    chosen[0] = best
    nearest = rows(torch.tensor([best]))[0].clone()
    bounds -= count * least  # from here on, upper bounds of the gains
    bounds[best] = -np.inf
    for position in range(1, k):
        best = _next(rows, nearest, bounds)
        chosen[position] = best
        torch.maximum(nearest, rows(torch.tensor([best]))[0], out=nearest)
        bounds[best] = -np.inf
    return chosen


def _first_gains(rows: _Rows, count: int) -> tuple[Gains, float]:
    """Σ_i s_ij for each j, and the smallest similarity."""
    sums, least = np.empty(count), np.inf
    for block in blocks(count):
        values = rows(block)
        sums[block.numpy()] = values.sum(1, dtype=torch.float64).cpu().numpy()
        least = min(least, float(values.min()))
    return sums, least


def _next(rows: _Rows, nearest: torch.Tensor, bounds: Gains) -> int:
    """The sample with the largest gain; updates the bounds of the candidates.

    Equal gains are not rare: two samples that are nearest only to each other have the same gain.
    Rounding must not decide, so gains that differ only by rounding count as equal.
    """
    fresh = np.zeros(len(bounds), bool)
    rounding = ROUNDING * torch.finfo(nearest.dtype).eps
    size = FIRST_BATCH
    while True:
        largest = float(bounds.max())
        best = np.flatnonzero(bounds >= largest - rounding * (1 + abs(largest)))
        stale = best[~fresh[best]]
        if largest == -np.inf or not len(stale):
            return int(best[0])
        size = min(size, len(bounds))
        candidates = np.argpartition(bounds, len(bounds) - size)[-size:]
        candidates = candidates[~fresh[candidates] & (bounds[candidates] > -np.inf)]
        stale = np.union1d(stale[:LARGEST_BATCH], candidates)
        gains = (rows(torch.from_numpy(stale)) - nearest).clamp_min_(0).sum(1, dtype=torch.float64)
        bounds[stale] = gains.cpu().numpy()
        fresh[stale] = True
        size = min(2 * size, LARGEST_BATCH)


class _Rows:
    """Rows of the similarity matrix: all of them, or as many as fit, computed on demand."""

    def __init__(self, similarity: Similarity, count: int) -> None:
        self._similarity = similarity
        slots = min(count, max(2 * LARGEST_BATCH, MATRIX_BYTES // (4 * count)))
        self._stored: torch.Tensor | None = None
        self._slots, self._next_slot = slots, 0
        self._slot_of = np.full(count, -1)
        self._row_in = np.full(slots, -1)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        numbers = rows.numpy()
        missing = numbers[self._slot_of[numbers] < 0]
        if not len(missing):
            return self._from_stored(numbers)
        computed = self._similarity(torch.from_numpy(missing))
        if len(missing) == len(numbers):
            self._store(missing, computed)
            return computed
        result = computed.new_empty(len(numbers), computed.shape[1])
        is_stored = torch.from_numpy(self._slot_of[numbers] >= 0)
        result[is_stored] = self._from_stored(numbers[self._slot_of[numbers] >= 0])
        result[~is_stored] = computed
        self._store(missing, computed)
        return result

    def _from_stored(self, numbers: Indices) -> torch.Tensor:
        assert self._stored is not None
        if len(numbers) == 1:
            return self._stored[self._slot_of[numbers[0]]][None]
        return self._stored[torch.from_numpy(self._slot_of[numbers])]

    def _store(self, numbers: Indices, computed: torch.Tensor) -> None:
        if self._stored is None:
            self._stored = computed.new_empty(self._slots, computed.shape[1])
        numbers, computed = numbers[-self._slots :], computed[-self._slots :]
        slots = (self._next_slot + np.arange(len(numbers))) % self._slots
        self._next_slot = int(slots[-1] + 1) % self._slots
        forgotten = self._row_in[slots]
        self._slot_of[forgotten[forgotten >= 0]] = -1  # evict the oldest
        self._row_in[slots] = numbers
        self._slot_of[numbers] = slots
        self._stored[torch.from_numpy(slots)] = computed
