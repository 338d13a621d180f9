"""A comparison of arms over lengths and seeds: which runs to make, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infobatch.lab.compare.jobs import Job, run_jobs
from infobatch.lab.compare.rates import (
    USUAL_SEEDS,
    RateSearch,
    rate_runs,
    search_cost,
    seeds_of_choice,
)
from infobatch.lab.compare.results import (
    RESULTS_FILE,
    RUNS,
    SELECTIONS,
    SWEEP,
    Results,
    Settings,
    finished_runs,
    read_results,
    run_folder,
    tried_rates,
    write_results,
)
from infobatch.lab.files import to_json
from infobatch.lab.run.arms import Arm, in_order, leader_of
from infobatch.lab.run.identity import hash_of_task, what_differs
from infobatch.lab.run.machine import versions
from infobatch.lab.run.settings import settings_of
from infobatch.lab.stats.decision import conclude
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, SHORT, Question, Record
from infobatch.lab.task import Task, load_task

Watch = Callable[["Comparison", Job, dict[str, Any]], None]
OWN = ("arm", "seed", "length", "budget", "leader", "validation", "rule_hash")  # of each run


@dataclass
class Comparison:
    """The settings of a comparison, and its runs.

    ``arms``, ``lengths`` and ``seeds`` are what is requested now; the folder may have more from
    earlier commands, and the results include all of them. Every run in a folder has the same
    settings; a difference raises an error. With ``most_seeds``, seeds are added one by one until there
    is a decision.

    ``rate_seeds`` is how many seeds choose each arm's learning rate from the grid. By default it is
    the folder's number, or else three, or the number of ``seeds`` if that is lower. They train for
    ``rate_length``, by default the folder's, or else the shortest of ``lengths``.
    """

    task_name: str
    arms: Sequence[Arm]
    seeds: int
    out: Path
    lengths: Sequence[float] = (1.0,)
    most_seeds: int | None = None
    data: Path | None = None
    smoke: bool = False
    options: dict[str, str] = field(default_factory=dict)
    learning_rates: Sequence[float] = ()
    rate_seeds: int | None = None
    rate_length: float | None = None
    log: str | None = None
    command: str = ""
    chosen_rates: dict[str, float] = field(init=False)  # by arm, after a sweep

    def __post_init__(self) -> None:
        self._check_choice()
        if self.most_seeds is not None and self.most_seeds < max(self.seeds, 3):
            raise ValueError(
                f"--most-seeds got {self.most_seeds} with --seeds {self.seeds}. Expected at least as "
                "many, and 3 or more."
            )
        self.task: Task = load_task(
            self.task_name, data=self.data, smoke=self.smoke, options=self.options
        )
        self._task_hash = hash_of_task(self.task_name)
        is_begun = (self.out / RESULTS_FILE).exists()
        before = read_results(self.out).settings if is_begun else None
        if self.learning_rates and self.rate_seeds is None:
            self.rate_seeds = (before and before.rate_seeds) or min(self.seeds, USUAL_SEEDS)
        if self.learning_rates and self.rate_length is None:
            lengths = self.lengths if before is None else before.lengths
            self.rate_length = (before and before.rate_length) or min(lengths)
        self._check_same_comparison(before)
        self._take_in(before)
        self.order = in_order(self.arms)
        self._finished()
        self._tried()

    def _take_in(self, before: Settings | None) -> None:
        """Add the arms, lengths, seeds and learning rates of earlier commands for this folder."""
        runs = finished_runs(self.out)
        asked, present = [arm.name for arm in self.arms], {run.arm for run in runs}
        names = dict.fromkeys([*(before.arms if before else ()), *asked, *sorted(present)])
        self.all_arms = [Arm(name) for name in names if name in present or name in asked]
        self.all_lengths = sorted({*(before.lengths if before else ()), *self.lengths})
        self._check_lengths()
        self.all_seeds = sorted({*range(self.seeds), *(run.seed for run in runs)})
        self.chosen_rates = dict(before.chosen_rates) if before else {}
        stated = before.stated_seeds if before else ()
        self.stated_seeds = stated if self.seeds in stated else (*stated, self.seeds)
        if not any(arm.name == FULL for arm in self.all_arms):
            raise ValueError(
                f"--arms got {','.join(asked)} without full, training on all data, which every arm "
                f"is compared with. Add it: --arms full,{','.join(asked)}."
            )
        self.leader = leader_of(self.all_arms)
        followers = [arm.name for arm in self.arms if arm.follows]
        if self.leader is not None and followers and self.leader.name not in asked:
            raise ValueError(
                f"--arms got {','.join(asked)}, but {self.out} has runs of {self.leader.name}, whose "
                f"cost {' and '.join(followers)} must match. Add it to --arms: finished runs are not "
                "repeated."
            )

    def _check_choice(self) -> None:
        if self.rate_seeds is not None and not self.learning_rates:
            raise ValueError(
                f"--rate-seeds got {self.rate_seeds} without --learning-rates, the grid that these "
                "seeds choose from."
            )
        if self.rate_length is not None and not self.learning_rates:
            raise ValueError(
                f"--rate-length got {self.rate_length:g} without --learning-rates, the grid that is "
                "tried at this length."
            )
        if self.rate_length is not None and not 0 < self.rate_length <= FULL_LENGTH:
            raise ValueError(
                f"--rate-length got {self.rate_length:g}, expected a share of the epochs, above 0 and "
                "at most 1."
            )

    def _check_lengths(self) -> None:
        if len(self.all_lengths) > 1 and any(arm.rule == SHORT for arm in self.all_arms):
            raise ValueError(
                "--arms got short together with several --lengths: all data for fewer epochs is the arm "
                "full at another length. Leave short out."
            )

    @property
    def settings(self) -> Settings:
        """The settings that are written with the runs."""
        tried = rate_runs(self._tried())
        return Settings(
            **self._fixed,
            arms=tuple(arm.name for arm in self.all_arms),
            lengths=tuple(self.all_lengths),
            seeds=tuple(self.all_seeds),
            stated_seeds=self.stated_seeds,
            leader=None if self.leader is None else self.leader.name,
            chosen_rates=self.chosen_rates,
            rates=self.rate_search().summaries(tried),
            tried_rates=tried,
            rate_cost=search_cost(tried, finished_runs(self.out)),
            command=self.command,
            versions=versions(),
        )

    @property
    def _of_every_run(self) -> dict[str, Any]:
        """The settings that all runs in the folder have in common."""
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
        return {name: value for name, value in settings.items() if name not in OWN}

    @property
    def _fixed(self) -> dict[str, Any]:
        """What is fixed before the first run, for all runs in the folder."""
        return {
            **self._of_every_run,
            "metric": self.task.metric,
            "unit": self.task.unit,
            "counts_items": self.task.counts_items,
            "higher_is_better": self.task.higher_is_better,
            "margin": self.task.margin,
            "class_names": tuple(self.task.class_names),
            "most_seeds": self.most_seeds,
            "learning_rates": tuple(self.learning_rates),
            "rate_seeds": self.rate_seeds,
            "rate_length": self.rate_length,
        }

    def _check_same_comparison(self, before: Settings | None) -> None:
        if before is None:
            return
        differing = what_differs(to_json(before), to_json(self._fixed))
        if differing:
            raise ValueError(
                f"{self.out} already holds a different comparison: {differing}. Choose another --out, or delete "
                f"{self.out} to start again. (More seeds, arms and lengths can be added.)"
            )

    def _finished(self) -> list[Record]:
        """The folder's finished runs, after checking that this comparison would make each."""
        runs = finished_runs(self.out)
        self._check_same_settings(runs, self.out / RUNS)
        place = {arm.name: number for number, arm in enumerate(in_order(self.all_arms))}
        return sorted(
            runs,
            key=lambda run: (run.seed, place.get(run.arm, len(place)), run.length),
        )

    def _tried(self) -> list[Record]:
        """The same for the runs that tried learning rates."""
        runs = tried_rates(self.out)
        self._check_same_settings(runs, self.out / SWEEP)
        return runs

    def _check_same_settings(self, runs: Sequence[Record], folder: Path) -> None:
        differing = {
            f"{run.arm}, seed {run.seed}": difference
            for run in runs
            if (difference := what_differs(run.settings, self._wanted_like(run)))
        }
        if differing:
            raise ValueError(
                f"{folder} holds runs whose settings differ from this comparison's: "
                f"{'; '.join(differing)} ({next(iter(differing.values()))}). Choose another --out, or "
                "delete the folders of these runs to repeat them."
            )

    def _wanted_like(self, run: Record) -> dict[str, Any]:
        return self._wanted(Arm(run.arm), validation=run.settings["validation"])

    def _wanted(self, arm: Arm, *, validation: bool) -> dict[str, Any]:
        """The settings that a run of an arm must have; runs of the comparison may have any length."""
        wanted = self._of_every_run
        if self.learning_rates:
            del wanted["learning_rate"]
            if not validation and arm.name in self.chosen_rates:
                wanted["learning_rate"] = self.chosen_rates[arm.name]
            if validation:
                wanted["length"] = self.rate_length
        if arm.hash is not None:
            wanted["rule_hash"] = arm.hash
        leads = self.leader.name if self.leader is not None else None
        return {**wanted, "leader": leads if arm.follows else None}

    # The runs.

    def jobs(self) -> list[Job]:
        """All runs, seed by seed, so that arms and lengths take turns."""
        return [job for seed in range(self.seeds) for job in self._jobs_of_seed(seed)]

    def _jobs_of_seed(self, seed: int) -> list[Job]:
        jobs: list[Job] = []
        followed = ",".join(arm.name for arm in self.arms if arm.can_be_followed)
        for length in sorted(self.lengths, reverse=True):
            leading: Job | None = None
            for arm in self.order:
                folder = run_folder(self.out, arm.name, seed, length=length)
                rate = self.chosen_rates.get(arm.name)
                arguments = self._arguments(length, rate)
                if arm.name == FULL and length == FULL_LENGTH and not seed and followed:
                    arguments += ("--shadow", followed)
                leader = leading if arm.follows else None
                jobs.append(Job(arm.name, seed, folder, arguments, leader, length))
                if arm == self.leader:
                    leading = jobs[-1]
        return jobs

    def rate_search(self) -> RateSearch:
        """The runs that choose the learning rates."""
        return RateSearch(
            self.out,
            self.order,
            self.leader,
            rates=self.learning_rates,
            seeds=seeds_of_choice(self.rate_seeds or 0),
            length=self.rate_length or FULL_LENGTH,
            arguments=lambda length, rate: self._arguments(length, rate, "--validation"),
            higher_is_better=self.task.higher_is_better,
            usual=self.task.learning_rate,
        )

    def _arguments(self, length: float, learning_rate: float | None, *more: str) -> tuple[str, ...]:
        arguments = [self.task_name, *more, "--length", repr(length)]
        if self.data is not None:
            arguments += ["--data", str(self.data)]
        if self.smoke:
            arguments.append("--smoke")
        if learning_rate is not None:
            arguments += ["--learning-rate", repr(learning_rate)]
        if self.log is not None:
            arguments += ["--log", self.log]
        if any(arm.coreset is not None for arm in self.arms):
            arguments += ["--selections", str(self.out / SELECTIONS)]
        for name, value in self.options.items():
            arguments += ["--set", f"{name}={value}"]
        return tuple(arguments)

    def run(self, *, at_once: int, watch: Watch) -> Results:
        """Make all missing runs, writing results.json after each; return its content."""

        def listen(job: Job, event: dict[str, Any]) -> None:
            if event.get("finished") and job.folder.parent.name == RUNS:
                self.collect()
            watch(self, job, event)

        if self.learning_rates:
            self.chosen_rates |= self.rate_search().choose(at_once=at_once, listen=listen)
            self._finished()  # raises an error if a run has another rate than the chosen one
        run_jobs(self.jobs(), at_once=at_once, listen=listen)
        results = self.collect()
        while self.most_seeds is not None and self._is_open(results):
            self.seeds += 1
            self.all_seeds = sorted({*self.all_seeds, self.seeds - 1})
            run_jobs(self.jobs(), at_once=at_once, listen=listen)
            results = self.collect()
        return results

    def _is_open(self, results: Results) -> bool:
        decision = results.conclusions.decision
        assert self.most_seeds is not None
        assert decision is not None, "full data has been trained"
        is_open = decision.kind == "not decided" or decision.more_seeds is not None
        return self.seeds < self.most_seeds and is_open

    def collect(self) -> Results:
        """Collect all finished runs in results.json, with the conclusions from them."""
        finished = self._finished()
        conclusions = conclude(finished, self.question)
        results = Results(self.settings, conclusions, tuple(finished))
        write_results(self.out, results)
        return results

    @property
    def question(self) -> Question:
        """The question that the runs are to answer."""
        return Question(
            margin=self.task.margin,
            higher_is_better=self.task.higher_is_better,
            unit=self.task.unit,
            epochs=self._of_every_run["epochs"],
            settings={arm: f"learning rate {rate:g}" for arm, rate in self.chosen_rates.items()},
            most_seeds=self.most_seeds,
        )
