"""The learning rate as part of the comparison: the same grid for every arm, on validation splits.

Each arm trains once per rate and seed, by default at the shortest length, on four fifths of the training set,
and is measured on the rest; each seed has its own split. The seeds are not those of the comparison, and
the test set is not used. :mod:`infobatch.lab.stats.rates` decides which rate is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infobatch.lab.compare.jobs import Job, Listener, run_jobs
from infobatch.lab.compare.results import RateCost, RateRun, sweep_folder
from infobatch.lab.run.arms import Arm
from infobatch.lab.run.result import RESULT_FILE
from infobatch.lab.stats.rates import RateSummary, summarise_rates
from infobatch.lab.stats.runs import Record

Arguments = Callable[[float, float], tuple[str, ...]]
FIRST_SEED = 100_000  # beyond the seeds of any comparison
USUAL_SEEDS = 3


def seeds_of_choice(count: int) -> range:
    """The seeds of the runs that choose learning rates."""
    return range(FIRST_SEED, FIRST_SEED + count)


class RateSearch:
    """The runs that choose each arm's learning rate; ``usual`` is the task's rate."""

    def __init__(
        self,
        out: Path,
        arms: Sequence[Arm],
        leader: Arm | None,
        *,
        rates: Sequence[float],
        seeds: Sequence[int],
        length: float,
        arguments: Arguments,
        higher_is_better: bool,
        usual: float,
    ) -> None:
        self.rates, self.seeds, self.length = rates, seeds, length
        self._out, self._arms, self._leader = out, arms, leader
        self._arguments = arguments
        self._higher_is_better, self._usual = higher_is_better, usual

    def jobs(self, arm: Arm, chosen: Mapping[str, float]) -> list[Job]:
        """One run per rate and seed; a following arm has its leader's cost at the chosen rate."""
        return [
            self._job(arm, rate, seed, self._leading(arm, seed, chosen))
            for seed in self.seeds
            for rate in self.rates
        ]

    def _leading(self, arm: Arm, seed: int, chosen: Mapping[str, float]) -> Job | None:
        if not arm.follows or self._leader is None:
            return None
        return self._job(self._leader, chosen[self._leader.name], seed, None)

    def _job(self, arm: Arm, rate: float, seed: int, leader: Job | None) -> Job:
        folder = sweep_folder(self._out, arm.name, rate, seed)
        return Job(arm.name, seed, folder, self._arguments(self.length, rate), leader, self.length)

    def missing(self) -> int:
        """The number of unfinished runs."""
        folders = (
            sweep_folder(self._out, arm.name, rate, seed)
            for arm in self._arms
            for rate in self.rates
            for seed in self.seeds
        )
        return sum(not (folder / RESULT_FILE).exists() for folder in folders)

    def choose(self, *, at_once: int, listen: Listener) -> dict[str, float]:
        """Make the missing runs, and return the learning rate for each arm."""
        chosen: dict[str, float] = {}
        for followers in (False, True):
            arms = [arm for arm in self._arms if arm.follows == followers]
            jobs = [job for arm in arms for job in self.jobs(arm, chosen)]
            run_jobs(jobs, at_once=at_once, listen=listen)
            results = [result for job in jobs if (result := job.result) is not None]
            summaries = self.summaries(rate_runs(results))
            chosen |= {row.arm: row.learning_rate for row in summaries if row.chosen}
        return chosen

    def summaries(self, tried: Sequence[RateRun]) -> tuple[RateSummary, ...]:
        """The result of each rate over the seeds, arm by arm."""
        metrics: dict[str, dict[float, list[float | None]]] = {}
        for run in tried:
            by_rate = metrics.setdefault(run.arm, {})
            by_rate.setdefault(run.learning_rate, []).append(run.metric)
        return tuple(
            rate
            for arm, grid in metrics.items()
            for rate in summarise_rates(
                grid, arm=arm, higher_is_better=self._higher_is_better, usual=self._usual
            )
        )


def rate_runs(records: Sequence[Record]) -> tuple[RateRun, ...]:
    """The runs of the grid: by arm, then by ascending rate, then by seed."""
    order = {record.arm: place for place, record in enumerate(records)}
    runs = [
        RateRun(
            arm=record.arm,
            learning_rate=record.settings["learning_rate"],
            seed=record.seed,
            metric=record.metric,
            samples_forwarded=record.costs.samples_forwarded,
            seconds=record.costs.seconds,
        )
        for record in records
    ]
    return tuple(sorted(runs, key=lambda run: (order[run.arm], run.learning_rate, run.seed)))


def search_cost(tried: Sequence[RateRun], runs: Sequence[Record]) -> RateCost | None:
    """The cost of the choice, also as a share of all sample passes; None without a grid."""
    if not tried:
        return None
    passes = sum(run.samples_forwarded for run in tried)
    return RateCost(
        runs=len(tried),
        samples_forwarded=passes,
        share=passes / (passes + sum(run.costs.samples_forwarded for run in runs)),
        seconds=sum(run.seconds for run in tried),
    )
