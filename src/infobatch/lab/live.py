"""What a person sees while a comparison runs, and at its end."""

from __future__ import annotations

import statistics
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from infobatch.lab.comparison import Comparison
from infobatch.lab.jobs import Job
from infobatch.lab.summary import ArmSummary, summarise


class LiveTable:
    """A table that follows the runs; where there is no terminal, a line for each finished run."""

    def __init__(self, console: Console, comparison: Comparison) -> None:
        self._console, self._comparison = console, comparison
        self._standings: dict[tuple[str, int], dict[str, Any]] = {}
        self._began = time.monotonic()
        self._done_before = sum(job.result is not None for job in comparison.jobs())
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveTable:
        if self._console.is_terminal:
            self._live.start()
            self._live.update(self._table())
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
        key = (job.folder.parent.name + job.arm, job.seed)
        if event.get("finished"):
            self._standings.pop(key, None)
            if not self._console.is_terminal:
                metric = (job.result or {}).get("metric")
                told = "not finite" if metric is None else f"{metric:.4g}"
                name = f"{job.folder.parent.name}/{job.folder.name}"
                line = f"{name}: {comparison.task.metric} {told}"
                self._console.print(line, highlight=False, markup=False)
        else:
            self._standings[key] = event
        if self._console.is_terminal:
            self._live.update(self._table())

    def _table(self) -> Table:
        comparison = self._comparison
        table = Table(
            title=f"{comparison.task.name}: {comparison.task.metric}", caption=self._left()
        )
        for name in ("arm", "seeds done", "mean so far", "running"):
            table.add_column(name, justify="left" if name in ("arm", "running") else "right")
        for arm in comparison.arms:
            jobs = [job for job in comparison.jobs() if job.arm == arm.name]
            results = [result for job in jobs if (result := job.result) is not None]
            metrics = [result["metric"] for result in results if result["metric"] is not None]
            running = [
                f"{kind.removesuffix(arm.name)} seed {seed}: epoch {at['epoch']}/{at['epochs']}"
                for (kind, seed), at in self._standings.items()
                if at["arm"] == arm.name
            ]
            mean = f"{statistics.fmean(metrics):.2f}" if metrics else "–"
            table.add_row(arm.name, f"{len(results)}/{len(jobs)}", mean, ", ".join(running))
        return table

    def _left(self) -> str:
        """The time left, from the runs of this sitting."""
        jobs = self._comparison.jobs()
        done = sum(job.result is not None for job in jobs) - self._done_before
        parts = sum(at["done"] for at in self._standings.values())
        spent = time.monotonic() - self._began
        if done + parts <= 0:
            return "time left: not known yet"
        left = spent / (done + parts) * (len(jobs) - self._done_before - done - parts)
        return (
            f"time left: about {left / 60:.0f} min"
            if left > 90
            else f"time left: about {left:.0f} s"
        )


def results_table(results: dict[str, Any]) -> Table:
    """The finished comparison: metric and costs by arm, with the verdict."""
    verdicts = {verdict["arm"]: verdict["text"] for verdict in results["verdicts"]}
    table = Table(title=f"{results['task']}: {results['metric']}, last epoch, test set")
    columns = ("seeds", results["metric"], "saved", "steps", "seconds", "overhead", "peak MB")
    table.add_column("arm")
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
            _metric(arm),
            f"{arm.saved_fraction:.1%}",
            f"{arm.optimizer_steps:,.0f}",
            f"{arm.seconds:.1f}",
            f"{arm.overhead_seconds:.2f} s",
            f"{arm.peak_memory_mb:.0f}",
            verdicts.get(arm.arm, ""),
        )
    return table


def _metric(arm: ArmSummary) -> str:
    if arm.metric is None:
        return "none finite"
    return f"{arm.metric.mean:.2f}" + (
        f" ± {arm.metric.sd:.2f}" if arm.metric.sd is not None else ""
    )
