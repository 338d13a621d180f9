"""The pairing of runs by seed, made here and nowhere else.

Every difference between an arm and full data, or another arm, is taken on the seeds that this
module pairs, so that no two conclusions about an arm rest on different seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from infobatch.lab.stats.intervals import Array
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, SHORT, Cost, Record

Cell = tuple[str, float]  # an arm at a length


@dataclass(frozen=True)
class Measurement:
    """One finished run: ``length`` is a share of the epochs, ``cost`` in any unit.

    ``quality`` is None, or not finite, for a run that diverged.
    """

    arm: str
    length: float
    seed: int
    cost: float
    quality: float | None


def measurements(records: Sequence[Record], *, cost: Cost) -> list[Measurement]:
    """The records as points of quality against cost.

    ``short`` is all data for fewer epochs, so it is a point of the curve of ``full``. Its length
    differs a little from seed to seed, with the cost of the arm that it follows; the mean names it.
    """
    shares = [1 - record.saved_fraction for record in records if record.arm == SHORT]
    short_length = round(sum(shares) / len(shares), 3) if shares else math.nan
    as_full = (
        replace(record, arm=FULL, length=short_length) if record.arm == SHORT else record
        for record in records
    )
    return [
        Measurement(
            arm=record.arm,
            length=record.length,
            seed=record.seed,
            cost=float(getattr(record.costs, cost)),
            quality=record.metric,
        )
        for record in as_full
    ]


@dataclass(frozen=True)
class Pairs:
    """Runs on the same seeds: log costs and qualities, one column per seed.

    ``cost`` and ``quality`` have one row for each arm and length that was asked for, ``full_cost``
    and ``full_quality`` one for each of full data's lengths, shortest first. Qualities are signed
    so that higher is better; that of a run that diverged is minus infinity, except for full data,
    all of whose runs are finite.
    """

    seeds: tuple[int, ...]
    cost: Array
    quality: Array
    full_cost: Array
    full_quality: Array
    final: int  # the row of full data at full length

    @property
    def final_cost(self) -> Array:
        """The log costs of full data at full length, one per seed."""
        costs: Array = self.full_cost[self.final]
        return costs

    @property
    def final_quality(self) -> Array:
        """The quality of full data at full length, one per seed."""
        qualities: Array = self.full_quality[self.final]
        return qualities

    @property
    def to_full(self) -> Array:
        """The first row's differences from full data at full length, one per seed."""
        differences: Array = self.quality[0] - self.final_quality
        return differences

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds on which some run diverged."""
        columns = zip(self.seeds, self.quality.T, strict=True)
        return tuple(seed for seed, qualities in columns if np.isneginf(qualities).any())


class PairedRuns:
    """The runs of a comparison by arm and length, paired by seed.

    A seed is paired if full data has a run at every length and so does the arm. A run of an arm
    that diverged is infinitely bad, and its seed stays. If full data diverged, that would put every
    arm above its curve, so a seed on which full data diverged is excluded and named, as is a length
    at which it diverged on every seed.
    """

    def __init__(self, runs: Iterable[Measurement], *, higher_is_better: bool) -> None:
        self.sign = 1.0 if higher_is_better else -1.0
        self._cells: dict[Cell, dict[int, tuple[float, float]]] = {}
        for run in runs:
            self._add(run)
        lengths = [length for arm, length in self._cells if arm == FULL]
        if not lengths:
            arms = ", ".join(dict.fromkeys(arm for arm, _ in self._cells)) or "none"
            raise ValueError(
                f"There is no run of {FULL!r}, which every arm is compared with; got runs of: {arms}."
            )
        finished = {length: self._qualities(FULL, length) for length in sorted(lengths)}
        self.left_out_lengths = tuple(
            length for length, qualities in finished.items() if max(qualities.values()) == -math.inf
        )
        self.lengths = tuple(length for length in finished if length not in self.left_out_lengths)
        self.final = row_of_full_length(self.lengths)
        common = [set(finished[length]) for length in self.lengths]
        complete = sorted(set.intersection(*common)) if common else []
        diverged = {
            seed
            for seed in complete
            if any(finished[length][seed] == -math.inf for length in self.lengths)
        }
        self.left_out_seeds = tuple(sorted(diverged))
        self.seeds = tuple(seed for seed in complete if seed not in diverged)

    def _add(self, run: Measurement) -> None:
        name = f"{run.arm!r}, length {run.length:g}, seed {run.seed}"
        if not (math.isfinite(run.cost) and run.cost > 0):
            raise ValueError(f"The cost of {name} is {run.cost!r}, expected a number above zero.")
        if not (math.isfinite(run.length) and run.length > 0):
            raise ValueError(f"A length is {run.length!r}, expected a share of the epochs above 0.")
        cell = self._cells.setdefault((run.arm, run.length), {})
        if run.seed in cell:
            raise ValueError(f"There are two runs of {name}, expected one.")
        finite = run.quality is not None and math.isfinite(run.quality)
        cell[run.seed] = (run.cost, self.sign * float(run.quality or 0.0) if finite else -math.inf)

    def _qualities(self, arm: str, length: float) -> dict[int, float]:
        return {seed: quality for seed, (_, quality) in self._cells[arm, length].items()}

    @property
    def cells(self) -> list[Cell]:
        """Every arm and length except full data's: arms in their given order, shortest first."""
        order = {arm: index for index, (arm, _) in enumerate(reversed(self._cells))}
        return sorted(
            (cell for cell in self._cells if cell[0] != FULL),
            key=lambda cell: (-order[cell[0]], cell[1]),
        )

    def pairs(self, *cells: Cell) -> Pairs:
        """The runs of these arms and lengths on the seeds that all of them and full data have.

        Without any, full data's own runs. An arm and length without runs has no seeds.
        """
        runs = [self._cells.get(cell, {}) for cell in cells]
        seeds = tuple(seed for seed in self.seeds if all(seed in by_seed for by_seed in runs))
        full = [self._cells[FULL, length] for length in self.lengths]
        return Pairs(seeds, *_table(runs, seeds), *_table(full, seeds), self.final)


def row_of_full_length(lengths: Sequence[float]) -> int:
    """Which of full data's ascending lengths an arm must match: 1, or else the longest."""
    return lengths.index(FULL_LENGTH) if FULL_LENGTH in lengths else len(lengths) - 1


def _table(
    rows: Sequence[dict[int, tuple[float, float]]], seeds: Sequence[int]
) -> tuple[Array, Array]:
    """Log costs and qualities, one row per arm and length and one column per seed."""
    values = np.array([[by_seed[seed] for seed in seeds] for by_seed in rows], dtype=np.float64)
    values = values.reshape(len(rows), len(seeds), 2)
    return np.log(values[:, :, 0]), values[:, :, 1]
