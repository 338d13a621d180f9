"""What a person sees while a comparison runs, and at its end."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from infobatch.lab.arms import FULL
from infobatch.lab.comparison import Comparison
from infobatch.lab.jobs import Job
from infobatch.lab.summary import ArmSummary, summarise
from infobatch.lab.verdict import Difference, decimals, described

SWEEP = "sweep"  # the folder of the runs that choose learning rates


class LiveTable:
    """A table that follows the runs; where there is no terminal, a line for each finished run."""

    def __init__(self, console: Console, comparison: Comparison) -> None:
        self._console, self._comparison = console, comparison
        self._digits = decimals(comparison.task.margin)
        self._running: dict[Path, tuple[Job, dict[str, Any]]] = {}  # by their folders
        self._metrics: dict[Path, float] = {}  # of runs under way; not every epoch is evaluated
        self._began = time.monotonic()
        self._to_do = _count_missing(comparison)
        self._done = 0  # in this sitting
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveTable:
        if self._console.is_terminal:
            self._live.start()
            self._live.update(self.table())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def watch(self, comparison: Comparison, job: Job, event: dict[str, Any]) -> None:
        """Take in what a run tells."""
        if event.get("finished"):
            self._running.pop(job.folder, None)
            self._done += 1
            if not self._console.is_terminal:
                metric = (job.result or {}).get("metric")
                told = "not finite" if metric is None else f"{metric:.{self._digits}f}"
                name = f"{job.folder.parent.name}/{job.folder.name}"
                line = f"{name}: {comparison.task.metric} {told}"
                self._console.print(line, highlight=False, markup=False)
        else:
            self._running[job.folder] = (job, event)
            metric = (event["last"] or {}).get("metric")
            if metric is not None:
                self._metrics[job.folder] = metric
        if self._console.is_terminal:
            self._live.update(self.table())

    def table(self) -> Table:
        """How the comparison stands."""
        comparison = self._comparison
        table = Table(
            title=f"{comparison.task.name}: {comparison.task.metric}", caption=self.time_left()
        )
        for name in ("arm", "seeds done", "mean so far", "running"):
            table.add_column(name, justify="left" if name in ("arm", "running") else "right")
        for arm in comparison.arms:
            jobs = [job for job in comparison.jobs() if job.arm == arm.name]
            results = [result for job in jobs if (result := job.result) is not None]
            metrics = [result["metric"] for result in results if result["metric"] is not None]
            running = [
                self._standing(job, at) for job, at in self._running.values() if job.arm == arm.name
            ]
            mean = f"{statistics.fmean(metrics):.{self._digits}f}" if metrics else "–"
            table.add_row(arm.name, f"{len(results)}/{len(jobs)}", mean, ", ".join(running))
        return table

    def _standing(self, job: Job, at: dict[str, Any]) -> str:
        if job.folder.parent.name == SWEEP:
            rate = job.folder.name.removeprefix(f"{job.arm}-").removesuffix(f"-{job.seed}")
            name = f"learning rate {rate}"
        else:
            name = f"seed {job.seed}"
        metric = self._metrics.get(job.folder)
        so_far = "" if metric is None else f", {metric:.{self._digits}f}"
        return f"{name}: epoch {at['epoch']}/{at['epochs']}{so_far}"

    def time_left(self) -> str:
        """The time left, from the runs of this sitting."""
        done = self._done + sum(at["done"] for _, at in self._running.values())
        spent = time.monotonic() - self._began
        if done <= 0:
            return "time left: not known yet"
        left = spent / done * max(0.0, self._to_do - done)
        return (
            f"time left: about {left / 60:.0f} min"
            if left > 90
            else f"time left: about {left:.0f} s"
        )


def _count_missing(comparison: Comparison) -> int:
    """The runs that are still to be made, those that choose learning rates included."""
    arms = tuple(f"{arm.name}-" for arm in comparison.arms)
    results = (comparison.out / SWEEP).glob("*/result.json")
    tried = sum(path.parent.name.startswith(arms) for path in results)
    to_try = len(comparison.arms) * len(comparison.learning_rates)
    return max(0, to_try - tried) + sum(job.result is None for job in comparison.jobs())


def results_table(results: dict[str, Any]) -> Table:
    """The finished comparison: metric and costs by arm, and a word for the verdict."""
    verdicts = {verdict["arm"]: verdict["decision"] for verdict in results["verdicts"]}
    digits = decimals(results["margin"])
    table = Table(title=f"{results['task']}: {results['metric']}, last epoch, test set")
    columns = ("seeds", results["metric"], "saved", "steps", "seconds", "overhead", "peak MB")
    table.add_column("arm", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("against full")
    for arm in summarise(results["runs"], arms=results["arms"]):
        if not arm.seeds:
            table.add_row(arm.arm, "0")
            continue
        table.add_row(
            arm.arm,
            str(len(arm.seeds)),
            _metric(arm, digits),
            f"{arm.saved_fraction:.1%}",
            f"{arm.optimizer_steps:,.0f}",
            f"{arm.seconds:.1f}",
            f"{arm.overhead_seconds:.2f} s",
            "–" if arm.peak_memory_mb is None else f"{arm.peak_memory_mb:.0f}",
            verdicts.get(arm.arm, ""),
        )
    return table


def _metric(arm: ArmSummary, digits: int) -> str:
    if arm.metric is None:
        return "none finite"
    told = f"{arm.metric.mean:.{digits}f}"
    return told if arm.metric.sd is None else f"{told} ± {arm.metric.sd:.{digits}f}"


def answers(results: dict[str, Any]) -> list[str]:
    """A line for each arm: the verdict, the interval it rests on, and what the cheap baselines do."""
    lines = [_answer(verdict) for verdict in results["verdicts"]]
    if results.get("smoke"):
        lines.append("A smoke run: it shows that everything works, and says nothing about quality.")
    return lines


def _answer(verdict: dict[str, Any]) -> str:
    digits = decimals(verdict["margin"])
    others = [
        f"to {one['to']} {described(Difference(**one), digits)}"
        for one in verdict["differences"]
        if one["to"] != FULL
    ]
    line = f"{verdict['arm']}: {verdict['text']}. {verdict['explanation']}"
    return f"{line} Difference {'; '.join(others)}." if others else line
