"""The live display of a running comparison."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from infobatch.lab.compare.comparison import Comparison
from infobatch.lab.compare.jobs import Job
from infobatch.lab.compare.results import SWEEP
from infobatch.lab.run.result import RESULT_FILE
from infobatch.lab.stats.intervals import decimals
from infobatch.lab.stats.runs import FULL_LENGTH, label_of


class LiveTable:
    """A table that follows the runs; without a terminal, one line per finished run."""

    def __init__(self, console: Console, comparison: Comparison) -> None:
        self._console, self._comparison = console, comparison
        self._digits = decimals(comparison.task.margin)
        self._running: dict[Path, tuple[Job, dict[str, Any]]] = {}  # by their folders
        self._metrics: dict[Path, float] = {}  # of running runs; not every epoch is evaluated
        self._results = {  # by folder; read once, since the table is drawn at every event
            job.folder: result for job in comparison.jobs() if (result := job.result) is not None
        }
        self._began = time.monotonic()
        self._to_do = _lengths_missing(comparison)
        self._done = 0.0  # since this command started, in full-length training runs
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
        """Handle an event from a run."""
        if event.get("finished"):
            self._running.pop(job.folder, None)
            self._done += job.length
            result = job.result
            assert result is not None, "a finished run has a result"
            self._results[job.folder] = result
            if not self._console.is_terminal:
                metric = result.metric
                value = "not finite" if metric is None else f"{metric:.{self._digits}f}"
                name = f"{job.folder.parent.name}/{job.folder.name}"
                line = f"{name}: {comparison.task.metric} {value}"
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            self._running[job.folder] = (job, event)
            metric = (event.get("last") or {}).get("metric")
            if metric is not None:
                self._metrics[job.folder] = metric
        if self._console.is_terminal:
            self._live.update(self.table())

    def table(self) -> Table:
        """The current state of the comparison."""
        comparison = self._comparison
        table = Table(
            title=f"{comparison.task.name}: {comparison.task.metric}", caption=self.time_left()
        )
        columns = ("arm", "runs done", "mean at full length", "running")
        for name in columns:
            left = name in ("arm", "running")
            table.add_column(name, justify="left" if left else "right", overflow="fold")
        for arm in comparison.arms:
            jobs = [job for job in comparison.jobs() if job.arm == arm.name]
            finished = [job for job in jobs if job.folder in self._results]
            metrics = [
                metric
                for job in finished
                if (metric := self._results[job.folder].metric) is not None
                and job.length == FULL_LENGTH
            ]
            running = [
                self._standing(job, at) for job, at in self._running.values() if job.arm == arm.name
            ]
            mean = f"{statistics.fmean(metrics):.{self._digits}f}" if metrics else "–"
            table.add_row(
                label_of(arm.name), f"{len(finished)}/{len(jobs)}", mean, "\n".join(running)
            )
        return table

    def _standing(self, job: Job, at: dict[str, Any]) -> str:
        if job.folder.parent.name == SWEEP:
            rate = job.arguments[job.arguments.index("--learning-rate") + 1]
            name = f"learning rate {rate}, seed {job.seed}"
        elif len(self._comparison.lengths) > 1:
            name = f"length {job.length:g}, seed {job.seed}"
        else:
            name = f"seed {job.seed}"
        if at.get("started"):
            return f"{name}: starting"
        metric = self._metrics.get(job.folder)
        so_far = "" if metric is None else f", {metric:.{self._digits}f}"
        return f"{name}: epoch {at['epoch']}/{at['epochs']}{so_far}"

    def time_left(self) -> str:
        """The time left, estimated from the runs since this command started."""
        running = sum(at.get("done", 0.0) * job.length for job, at in self._running.values())
        done = self._done + running
        spent = time.monotonic() - self._began
        if done <= 0:
            return "time left: not known yet"
        left = spent / done * max(0.0, self._to_do - done)
        return (
            f"time left: about {left / 60:.0f} min"
            if left > 90
            else f"time left: about {left:.0f} s"
        )


def _lengths_missing(comparison: Comparison) -> float:
    """The remaining work in full-length training runs, including those that choose rates."""
    search = comparison.rate_search()
    missing = sum(
        job.length for job in comparison.jobs() if not (job.folder / RESULT_FILE).exists()
    )
    return missing + search.missing() * search.length
