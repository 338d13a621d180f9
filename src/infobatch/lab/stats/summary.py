"""One line per arm and length: its metric and its cost, averaged over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infobatch.lab.stats.contrast import Contrast, contrast
from infobatch.lab.stats.records import Record


@dataclass(frozen=True)
class Summary:
    """The finished runs of an arm at a length.

    ``metric`` covers the seeds with a finite value, None without any, and ``diverged`` counts the
    others. Costs are means over all seeds.
    """

    arm: str
    length: float
    seeds: tuple[int, ...]
    metric: Contrast | None
    diverged: int
    samples_forwarded: float
    samples_backpropagated: float
    optimizer_steps: float
    seconds: float
    cpu_seconds: float | None
    overhead_seconds: float
    peak_memory_mb: float | None
    saved_fraction: float
    leader: str | None  # the arm whose cost this one has


def summarise(records: Iterable[Record], *, arms: Sequence[str]) -> list[Summary]:
    """Summarise the finished runs: in the order of ``arms``, longest training first."""
    cells: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        cells.setdefault((record.arm, record.length), []).append(record)
    order = {arm: place for place, arm in enumerate(arms)}
    ranked = sorted(cells, key=lambda cell: (order.get(cell[0], len(order)), -cell[1]))
    return [_summary(*cell, cells[cell]) for cell in ranked]


def _summary(arm: str, length: float, records: list[Record]) -> Summary:
    metrics = [record.metric for record in records if record.metric is not None]

    def mean(name: str) -> float:
        return float(np.mean([getattr(record, name) for record in records]))

    def mean_if_known(name: str) -> float | None:
        values = [value for record in records if (value := getattr(record, name)) is not None]
        return float(np.mean(values)) if values else None

    return Summary(
        arm=arm,
        length=length,
        seeds=tuple(sorted(record.seed for record in records)),
        metric=contrast(metrics) if metrics else None,
        diverged=len(records) - len(metrics),
        samples_forwarded=mean("samples_forwarded"),
        samples_backpropagated=mean("samples_backpropagated"),
        optimizer_steps=mean("optimizer_steps"),
        seconds=mean("seconds"),
        cpu_seconds=mean_if_known("cpu_seconds"),
        overhead_seconds=mean("overhead_seconds"),
        peak_memory_mb=mean_if_known("peak_memory_mb"),
        saved_fraction=mean("saved_fraction"),
        leader=records[0].leader,
    )


def mean_and_deviation(metric: Contrast | None, digits: int) -> str:
    """``89.31 ± 0.12``, without a deviation if there is only one seed."""
    if metric is None:
        return "diverged"
    words = f"{metric.mean:.{digits}f}"
    return words if metric.sd is None else f"{words} ± {metric.sd:.{digits}f}"
