"""The measurements of a comparison: one cost and one quality per arm, length and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infobatch.lab.stats.contrast import Array


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


class PairedRuns:
    """The measurements by arm and length, with the seeds for which full data's curve is complete.

    Qualities are signed so that higher is better. A run that diverged is infinitely bad. For full
    data that would put every arm above the curve, so a seed on which full data diverged is excluded
    and named, as is a length at which it diverged on every seed.
    """

    def __init__(
        self, measurements: Iterable[Measurement], *, higher_is_better: bool, full: str = "full"
    ) -> None:
        self.full = full
        self.sign = 1.0 if higher_is_better else -1.0
        self._cells: dict[tuple[str, float], dict[int, tuple[float, float]]] = {}
        for run in measurements:
            self._add(run)
        lengths = [length for arm, length in self._cells if arm == full]
        if not lengths:
            arms = ", ".join(dict.fromkeys(arm for arm, _ in self._cells)) or "none"
            raise ValueError(
                f"There is no run of {full!r}, which every arm is compared with; got runs of: {arms}."
            )
        finished = {length: self._qualities(full, length) for length in sorted(lengths)}
        self.left_out_lengths = tuple(
            length for length, qualities in finished.items() if max(qualities.values()) == -math.inf
        )
        self.lengths = tuple(length for length in finished if length not in self.left_out_lengths)
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
    def points(self) -> list[tuple[str, float]]:
        """Every arm and length except full data's: arms in their given order, shortest first."""
        order = {arm: index for index, (arm, _) in enumerate(reversed(self._cells))}
        return sorted(
            (cell for cell in self._cells if cell[0] != self.full),
            key=lambda cell: (-order[cell[0]], cell[1]),
        )

    def seeds_of(self, cells: Sequence[tuple[str, float]]) -> tuple[int, ...]:
        """The seeds for which full data's curve and all of these are complete, diverged or not."""
        return tuple(
            seed for seed in self.seeds if all(seed in self._cells[cell] for cell in cells)
        )

    def table(
        self, cells: Sequence[tuple[str, float]], seeds: Sequence[int]
    ) -> tuple[Array, Array]:
        """Log costs and qualities, one row per arm and length and one column per seed."""
        values = np.array([[self._cells[cell][seed] for seed in seeds] for cell in cells])
        return np.log(values[:, :, 0]), values[:, :, 1]

    def full_table(self, seeds: Sequence[int]) -> tuple[Array, Array]:
        """The same for all of full data's lengths, shortest first."""
        return self.table([(self.full, length) for length in self.lengths], seeds)
