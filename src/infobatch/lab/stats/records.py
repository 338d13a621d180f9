"""Finished runs as typed records, from which results are judged and tables are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from infobatch.lab.stats.measurements import Measurement

FULL, SHORT, RANDOM = "full", "short", "random"
FULL_LENGTH = 1.0  # the task's number of epochs; pruned arms may be trained for longer
Seconds = Literal["cpu_seconds", "seconds"]
Cost = Literal["samples_forwarded"] | Seconds


@dataclass(frozen=True)
class Record:
    """One finished run: its metric, None if that was not finite, and its costs."""

    arm: str
    length: float
    seed: int
    metric: float | None
    saved_fraction: float
    samples_forwarded: int
    samples_backpropagated: int
    optimizer_steps: int
    seconds: float
    overhead_seconds: float
    evaluation_seconds: float
    peak_memory_mb: float | None
    cpu_seconds: float | None = None  # unknown on a GPU, and for runs of earlier versions
    leader: str | None = None  # the arm whose cost this one matches
    machine: str = ""  # what decides how fast a run is


def is_trained(arm: str, length: float) -> bool:
    """Whether a comparison trains an arm for a length: only pruned arms take more than all epochs."""
    return arm != FULL or length <= FULL_LENGTH


def read_record(run: Mapping[str, Any]) -> Record:
    """Read a record from results.json."""
    metric, costs = run["metric"], run["costs"]
    return Record(
        arm=run["arm"],
        length=run["length"],
        seed=run["seed"],
        metric=None if metric is None or not math.isfinite(metric) else float(metric),
        saved_fraction=run["saved_fraction"],
        samples_forwarded=costs["samples_forwarded"],
        samples_backpropagated=costs["samples_backpropagated"],
        optimizer_steps=costs["optimizer_steps"],
        seconds=costs["seconds"],
        overhead_seconds=costs["overhead_seconds"],
        evaluation_seconds=costs["evaluation_seconds"],
        peak_memory_mb=costs["peak_memory_mb"],
        cpu_seconds=costs.get("cpu_seconds"),
        leader=run["settings"]["leader"],
        machine=_machine(run["hardware"]),
    )


def _machine(hardware: Mapping[str, Any]) -> str:
    """The processor and its threads; not the system, which is updated now and then."""
    threads = f"{hardware['threads']} {'thread' if hardware['threads'] == 1 else 'threads'}"
    return f"{hardware.get('gpu', hardware['processor'])}, {threads}"


def seconds_to_compare(records: Sequence[Record]) -> Seconds | None:
    """CPU time if every run has it, since it hardly depends on the machine's other load.

    On a GPU there is only wall-clock time. None if the runs of a seed, which are compared with each
    other, were made on different machines.
    """
    machines = {(record.seed, record.machine) for record in records}
    if len(machines) > len({record.seed for record in records}):
        return None
    return "seconds" if any(not record.cpu_seconds for record in records) else "cpu_seconds"


def measurements(records: Sequence[Record], *, cost: Cost) -> list[Measurement]:
    """The records as points of quality against cost.

    ``short`` is all data for fewer epochs, so it is a point of the curve of ``full``. Its length
    differs a little from seed to seed, with the cost of the arm that it follows; the mean names it.
    """
    shares = [1 - record.saved_fraction for record in records if record.arm == SHORT]
    short_length = round(sum(shares) / len(shares), 3) if shares else math.nan
    as_full = (
        replace(record, arm=FULL, length=short_length) if record.arm == SHORT else record
        for record in records
    )
    return [
        Measurement(
            arm=record.arm,
            length=record.length,
            seed=record.seed,
            cost=float(getattr(record, cost)),
            quality=record.metric,
        )
        for record in as_full
    ]
