"""One line per arm: what it reached and what it cost, averaged over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infobatch.lab.intervals import Interval, t_interval


@dataclass(frozen=True)
class ArmSummary:
    """An arm's finished runs; every number is None while there are none.

    ``metric`` is over the seeds with a finite one, ``diverged`` counts the others. Costs are means
    over all seeds.
    """

    arm: str
    seeds: tuple[int, ...]
    metric: Interval | None
    diverged: int
    samples_forwarded: float | None
    samples_backpropagated: float | None
    optimizer_steps: float | None
    seconds: float | None
    overhead_seconds: float | None
    peak_memory_mb: float | None
    saved_fraction: float | None


def summarise(runs: Iterable[Mapping[str, Any]], *, arms: Sequence[str] = ()) -> list[ArmSummary]:
    """Summarise the records of ``results.json``, in the order of ``arms``."""
    by_arm: dict[str, list[Mapping[str, Any]]] = {arm: [] for arm in arms}
    for run in runs:
        by_arm.setdefault(run["arm"], []).append(run)
    return [_summary(arm, own) for arm, own in by_arm.items()]


def finite(value: Any) -> bool:
    """Whether a metric is there and is a finite number."""
    return value is not None and math.isfinite(value)


def _summary(arm: str, runs: list[Mapping[str, Any]]) -> ArmSummary:
    metrics = [float(run["metric"]) for run in runs if finite(run.get("metric"))]

    def mean_cost(name: str) -> float | None:
        values = [run["costs"][name] for run in runs if run["costs"].get(name) is not None]
        return float(np.mean(values)) if values else None

    return ArmSummary(
        arm=arm,
        seeds=tuple(sorted(run["seed"] for run in runs)),
        metric=t_interval(metrics),
        diverged=len(runs) - len(metrics),
        samples_forwarded=mean_cost("samples_forwarded"),
        samples_backpropagated=mean_cost("samples_backpropagated"),
        optimizer_steps=mean_cost("optimizer_steps"),
        seconds=mean_cost("seconds"),
        overhead_seconds=mean_cost("overhead_seconds"),
        peak_memory_mb=mean_cost("peak_memory_mb"),
        saved_fraction=float(np.mean([run["saved_fraction"] for run in runs])) if runs else None,
    )
