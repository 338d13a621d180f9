"""Compare arms of a task over seeds: which runs there are to make, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infobatch.lab.arms import FULL, Arm, in_order, leader_of
from infobatch.lab.identity import hash_of, what_differs
from infobatch.lab.jobs import Job, run_jobs
from infobatch.lab.results import finished_runs, read_results, run_folder, write_results
from infobatch.lab.task import Task, load_task
from infobatch.lab.training import settings_of, versions
from infobatch.lab.verdict import judge

Watch = Callable[["Comparison", Job, dict[str, Any]], None]


@dataclass
class Comparison:
    """The settings of a comparison, and its runs.

    ``arms`` and ``seeds`` are what is asked for now; the folder may have more from before, and
    results are made of all. Every run in a folder is of the same making: what differs is refused.
    """

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
    chosen_rates: dict[str, float] = field(init=False)  # by arm, after a sweep

    def __post_init__(self) -> None:
        self.task: Task = load_task(
            self.task_name, data=self.data, smoke=self.smoke, options=self.options
        )
        self._task_hash = hash_of(self.task_name)
        before = read_results(self.out) if (self.out / "results.json").exists() else {}
        self._refuse_another_comparison(before)
        self._take_in(before)
        self.order = in_order(self.arms)
        for kind in ("runs", "sweep"):
            self._finished(kind)

    def _take_in(self, before: Mapping[str, Any]) -> None:
        """Add the arms, seeds and learning rates of earlier commands for this folder."""
        runs = finished_runs(self.out)
        asked, present = [arm.name for arm in self.arms], {run["arm"] for run in runs}
        names = dict.fromkeys([*before.get("arms", []), *asked, *sorted(present)])
        self.all_arms = [Arm(name) for name in names if name in present or name in asked]
        self.all_seeds = sorted({*range(self.seeds), *(run["seed"] for run in runs)})
        self.chosen_rates = dict(before.get("chosen_rates", {}))
        self.leader = leader_of(self.all_arms)
        followers = [arm.name for arm in self.arms if arm.follows]
        if self.leader is not None and followers and self.leader.name not in asked:
            raise ValueError(
                f"--arms got {','.join(asked)}, but in {self.out} there is {self.leader.name}, whose "
                f"cost {' and '.join(followers)} must have. Add it to --arms: finished runs are not "
                "repeated."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What is written beside the runs."""
        return {
            **self._fixed,
            "arms": [arm.name for arm in self.all_arms],
            "seeds": self.all_seeds,
            "chosen_rates": self.chosen_rates,
            "command": self.command,
            "versions": versions(),
        }

    @property
    def _of_every_run(self) -> dict[str, Any]:
        """The settings that all runs of the folder have in common."""
        settings = asdict(
            settings_of(
                self.task,
                arm=FULL,
                seed=0,
                smoke=self.smoke,
                options=self.options,
                task_hash=self._task_hash,
            )
        )
        for own in ("arm", "seed", "budget", "leader", "validation"):
            del settings[own]
        return settings

    @property
    def _fixed(self) -> dict[str, Any]:
        """What is stated before the first run, and stays for all runs of the folder."""
        return {
            **self._of_every_run,
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "margin": self.task.margin,
            "learning_rates": list(self.learning_rates),
        }

    def _refuse_another_comparison(self, before: Mapping[str, Any]) -> None:
        differing = what_differs(before, self._fixed)
        if differing:
            raise ValueError(
                f"{self.out} holds a comparison that this one does not go with: {differing}. Choose "
                f"another --out, or delete {self.out} to begin anew. (More seeds and arms can be added.)"
            )

    def _finished(self, kind: str = "runs") -> list[dict[str, Any]]:
        """The folder's finished runs, each checked to be one that this comparison would make."""
        runs = finished_runs(self.out, kind=kind)
        differing = {
            f"{run['arm']}, seed {run['seed']}": told
            for run in runs
            if (told := what_differs(run["settings"], self._wanted(Arm(run["arm"]))))
        }
        if differing:
            raise ValueError(
                f"{self.out / kind} holds runs that do not go with this comparison: "
                f"{'; '.join(differing)} ({next(iter(differing.values()))}). Choose another --out, or "
                "delete the folders of these runs, and they are made anew."
            )
        place = {arm.name: number for number, arm in enumerate(in_order(self.all_arms))}
        return sorted(runs, key=lambda run: (run["seed"], place.get(run["arm"], len(place))))

    def _wanted(self, arm: Arm) -> dict[str, Any]:
        """The settings that a run of an arm must have, whatever its seed."""
        wanted = self._of_every_run
        if self.learning_rates:
            del wanted["learning_rate"]
        leads = self.leader.name if self.leader is not None else None
        return {**wanted, "leader": leads if arm.follows else None}

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
        """Gather all finished runs into results.json, with the verdicts that they allow."""
        finished = self._finished()
        verdicts = judge(
            finished,
            metric=self.task.metric,
            margin=self.task.margin,
            higher_is_better=self.task.higher_is_better,
            arms=[arm.name for arm in self.all_arms],
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
