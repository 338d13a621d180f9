"""Greedy facility location: exact, lazy, and in blocks, for any similarity.

The value of a set S is Σ_i max_{j ∈ S} s_ij: how well each sample is represented by the most
similar chosen one. A sample's gain can only decrease as others are chosen (the value is
submodular), so an old gain is an upper bound, and most gains need not be recomputed before the next
choice (Minoux 1978). The similarity s_ij matters only while it is above that of i to the most
similar chosen sample, so a matrix that would not fit in memory soon has few entries worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from infobatch.coresets.chance import Indices
from infobatch.coresets.vectors import blocks

KEPT_BYTES = 2**31  # of similarities
FIRST_BATCH, LARGEST_BATCH = 4, 512
ROUNDING = 16  # times the precision of a float
Similarity = Callable[[torch.Tensor], torch.Tensor]  # rows -> (len(rows), samples)
Gains = npt.NDArray[np.float64]


def greedy_facility_location(similarity: Similarity, count: int, k: int) -> Indices:
    """Choose ``k`` samples, each with the largest gain Σ_i max(0, s_ij − max_{chosen} s_i).

    The first is the one most similar to all; ties go to the lowest index.
    """
    values = similarity(torch.tensor([0]))
    fits = count * values.numel() * values.element_size() <= KEPT_BYTES
    if fits:
        similarity = _stored(similarity, values.new_empty(count, count))
    bounds, least = _first_gains(similarity, count)
    best = int(bounds.argmax())
    chosen = np.empty(k, np.int64)
    chosen[0] = best
    nearest = similarity(torch.tensor([best]))[0].clone()
    rows = _Rows(similarity, nearest) if fits else _Remainders(similarity, nearest)
    bounds -= count * least  # from here on, upper bounds of the gains
    bounds[best] = -np.inf
    for position in range(1, k):
        best = _next(rows, bounds)
        chosen[position] = best
        rows.choose(best)
        bounds[best] = -np.inf
    return chosen


def _stored(similarity: Similarity, matrix: torch.Tensor) -> Similarity:
    for block in blocks(len(matrix)):
        matrix[block] = similarity(block)
    return matrix.__getitem__


def _first_gains(similarity: Similarity, count: int) -> tuple[Gains, float]:
    """Σ_i s_ij for each j, and the smallest similarity."""
    sums, least = np.empty(count), np.inf
    for block in blocks(count):
        values = similarity(block)
        sums[block.numpy()] = values.sum(1, dtype=torch.float64).cpu().numpy()
        least = min(least, float(values.min()))
    return sums, least


def _next(rows: _Rows, bounds: Gains) -> int:
    """The sample with the largest gain; updates the bounds of the candidates.

    Equal gains are not rare: two samples that are nearest only to each other have the same gain.
    Rounding must not decide, so gains that differ only by rounding count as equal.
    """
    fresh = np.zeros(len(bounds), bool)
    rounding = ROUNDING * torch.finfo(rows.nearest.dtype).eps
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
        bounds[stale] = rows.gains(stale)
        fresh[stale] = True
        size = min(2 * size, LARGEST_BATCH)


class _Rows:
    """Rows of the similarity matrix, compared with the chosen samples.

    ``nearest`` is the similarity of each sample to the most similar chosen one.
    """

    def __init__(self, similarity: Similarity, nearest: torch.Tensor) -> None:
        self.nearest = nearest
        self._similarity = similarity

    def gains(self, numbers: Indices) -> Gains:
        """Σ_i max(0, s_ij − nearest_i) for some samples j."""
        excess = (self._similarity(torch.from_numpy(numbers)) - self.nearest).clamp_min_(0)
        return excess.sum(1, dtype=torch.float64).cpu().numpy()

    def choose(self, number: int) -> None:
        """Add a sample to the chosen ones."""
        row = self._similarity(torch.tensor([number]))[0]
        torch.maximum(self.nearest, row, out=self.nearest)


class _Remainders(_Rows):
    """Rows without the entries that can no longer add to a gain.

    ``nearest`` never decreases, so an entry that does not exceed it now never will. Few do after
    the first choices, so that most rows can be kept, and the others are computed when needed.
    """

    def __init__(self, similarity: Similarity, nearest: torch.Tensor) -> None:
        super().__init__(similarity, nearest)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the oldest first
        self._bytes = 0

    def gains(self, numbers: Indices) -> Gains:
        """Σ_i max(0, s_ij − nearest_i) for some samples j."""
        positions, values = zip(*self._entries(numbers), strict=True)
        lengths = torch.tensor([len(row) for row in positions], device=self.nearest.device)
        excess = (torch.cat(values) - self.nearest[torch.cat(positions)]).clamp_min_(0).double()
        sums = excess.new_zeros(len(numbers))
        return sums.index_add_(0, torch.repeat_interleave(lengths), excess).cpu().numpy()

    def choose(self, number: int) -> None:
        """Add a sample to the chosen ones."""
        [(positions, values)] = self._entries(np.array([number]))
        self.nearest[positions] = torch.maximum(self.nearest[positions], values)

    def _entries(self, numbers: Indices) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The positions and values of the entries of each row that exceed ``nearest``."""
        missing = [number for number in numbers.tolist() if number not in self._kept]
        computed = {}
        if missing:
            rows = self._similarity(torch.tensor(missing))
            for number, row in zip(missing, rows, strict=True):
                positions = (row > self.nearest).nonzero()[:, 0].int()
                computed[number] = positions, row[positions]
        entries = [
            computed[number] if number in computed else self._kept[number]
            for number in numbers.tolist()
        ]
        self._keep(computed)
        return entries

    def _keep(self, computed: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._kept |= computed
        self._bytes += sum(_size(row) for row in computed.values())
        while self._bytes > KEPT_BYTES:
            self._bytes -= _size(self._kept.pop(next(iter(self._kept))))


def _size(row: tuple[torch.Tensor, torch.Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in row)
