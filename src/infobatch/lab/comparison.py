"""Compare arms of a task over seeds: which runs there are to make, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infobatch.lab.arms import Arm, leader_of
from infobatch.lab.jobs import Job, run_jobs
from infobatch.lab.results import read_results, run_folder, write_results
from infobatch.lab.task import Task, load_task
from infobatch.lab.training import versions
from infobatch.lab.verdict import judge

Watch = Callable[["Comparison", Job, dict[str, Any]], None]


@dataclass
class Comparison:
    """The settings of a comparison, and its runs."""

    task_name: str
    arms: Sequence[Arm]
    seeds: int
    out: Path
    data: Path | None = None
    smoke: bool = False
    options: dict[str, str] = field(default_factory=dict)
    learning_rates: Sequence[float] = ()
    log: str | None = None
    command: str = ""
    chosen_rates: dict[str, float] = field(default_factory=dict)  # by arm, after a sweep

    def __post_init__(self) -> None:
        self.leader = leader_of(self.arms)
        # Followers last: they cost what their leader did.
        self.order = sorted(self.arms, key=lambda arm: arm.follows)
        self.task: Task = load_task(
            self.task_name, data=self.data, smoke=self.smoke, options=self.options
        )
        self._refuse_another_comparison()

    @property
    def settings(self) -> dict[str, Any]:
        """What is written beside the runs."""
        return {
            "task": self.task.name,
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "margin": self.task.margin,
            "smoke": self.smoke,
            "options": self.options,
            "arms": [arm.name for arm in self.arms],
            "seeds": list(range(self.seeds)),
            "learning_rates": list(self.learning_rates),
            "chosen_rates": self.chosen_rates,
            "command": self.command,
            "versions": versions(),
        }

    def _refuse_another_comparison(self) -> None:
        """Arms and seeds may be added to a folder; runs of another task must not mix with it."""
        if not (self.out / "results.json").exists():
            return
        before = read_results(self.out)
        for name in ("task", "smoke", "options", "learning_rates"):
            if before.get(name) != self.settings[name]:
                raise ValueError(
                    f"{self.out} holds a comparison with {name} = {before.get(name)!r}, this one has "
                    f"{self.settings[name]!r}. Choose another --out."
                )

    # The runs.

    def jobs(self) -> list[Job]:
        """All runs, seed by seed, so that the arms take turns."""
        return [job for seed in range(self.seeds) for job in self._jobs_of_seed(seed)]

    def _jobs_of_seed(self, seed: int) -> list[Job]:
        jobs: list[Job] = []
        for arm in self.order:
            leader = next((job for job in jobs if arm.follows and self._leads(job)), None)
            folder = run_folder(self.out, arm.name, seed)
            rate = self.chosen_rates.get(arm.name)
            jobs.append(Job(arm.name, seed, folder, self._arguments(rate), leader))
        return jobs

    def _leads(self, job: Job) -> bool:
        return self.leader is not None and job.arm == self.leader.name

    def _arguments(self, learning_rate: float | None, *more: str) -> tuple[str, ...]:
        arguments = [self.task_name, *more]
        if self.data is not None:
            arguments += ["--data", str(self.data)]
        if self.smoke:
            arguments.append("--smoke")
        if learning_rate is not None:
            arguments += ["--learning-rate", repr(learning_rate)]
        if self.log is not None:
            arguments += ["--log", self.log]
        for name, value in self.options.items():
            arguments += ["--set", f"{name}={value}"]
        return tuple(arguments)

    def run(self, *, at_once: int, watch: Watch) -> dict[str, Any]:
        """Make all runs that are missing, writing results.json after each; return what it holds."""

        def listen(job: Job, event: dict[str, Any]) -> None:
            if event.get("finished") and job.folder.parent.name == "runs":
                self.collect()
            watch(self, job, event)

        if self.learning_rates:
            self._sweep(at_once, listen)
        run_jobs(self.jobs(), at_once=at_once, listen=listen)
        return self.collect()

    def collect(self) -> dict[str, Any]:
        """Gather the finished runs into results.json, with the verdicts that they allow."""
        runs = [job.result for job in self.jobs()]
        finished = [run for run in runs if run is not None]
        verdicts = judge(
            finished,
            metric=self.task.metric,
            margin=self.task.margin,
            higher_is_better=self.task.higher_is_better,
            arms=[arm.name for arm in self.arms],
        )
        write_results(
            self.out, self.settings, finished, verdicts=[verdict.as_dict() for verdict in verdicts]
        )
        return read_results(self.out)

    # The learning rates.

    def _sweep(self, at_once: int, listen: Callable[[Job, dict[str, Any]], None]) -> None:
        """Choose each arm's learning rate from the same grid, on a part of the training set."""
        for followers in (False, True):
            arms = [arm for arm in self.order if arm.follows == followers]
            jobs = {
                arm.name: [self._sweep_job(arm, rate) for rate in self.learning_rates]
                for arm in arms
            }
            run_jobs(
                [job for tried in jobs.values() for job in tried], at_once=at_once, listen=listen
            )
            for name, tried in jobs.items():
                self.chosen_rates[name] = max(
                    zip(self.learning_rates, tried, strict=True),
                    key=lambda pair: self._goodness(pair[1]),
                )[0]

    def _sweep_job(self, arm: Arm, rate: float) -> Job:
        leader = None
        if arm.follows and self.leader is not None:
            leader = self._sweep_job(self.leader, self.chosen_rates[self.leader.name])
        folder = run_folder(self.out, f"{arm.name}-{rate!r}", 0, kind="sweep")
        return Job(arm.name, 0, folder, self._arguments(rate, "--validation"), leader)

    def _goodness(self, job: Job) -> float:
        result = job.result
        assert result is not None
        metric = result["metric"]
        if metric is None:  # diverged
            return -math.inf
        return float(metric if self.task.higher_is_better else -metric)
