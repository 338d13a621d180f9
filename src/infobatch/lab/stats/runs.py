"""A comparison's question, its finished runs as typed records, and their means by arm and length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from infobatch.lab.stats.intervals import Estimate, estimate
from infobatch.savings import EpochPasses

FULL, SHORT, RANDOM = "full", "short", "random"
FULL_LENGTH = 1.0  # the task's number of epochs; arms may be trained for longer
Seconds = Literal["cpu_seconds", "seconds"]
Cost = Literal["samples_forwarded"] | Seconds


AUTO = "auto"
_SAME_AS_AUTO = "noise:tau=0.2:delta=1.0"  # how earlier comparisons wrote it


def label_of(text: str) -> str:
    """An arm's name, or a text with such names, as tables and figures show it.

    >>> label_of("noise:tau=0.2:delta=1.0:gradient=root")
    'auto:gradient=root'
    """
    return text.replace(_SAME_AS_AUTO, AUTO)


@dataclass(frozen=True)
class Question:
    """What was fixed before the first run.

    ``settings`` has what was chosen for an arm, such as ``{"quantile": "learning rate 0.2"}``;
    ``epochs`` is the number at full length, if lengths should be given in epochs. ``most_seeds`` is
    set if seeds are added until there is a decision.
    """

    margin: float
    higher_is_better: bool
    unit: str = ""
    epochs: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    most_seeds: int | None = None


@dataclass
class Costs:
    """The cost of a run so far."""

    samples_forwarded: int = 0  # including scoring before the first epoch, three samples as one
    samples_backpropagated: int = 0
    optimizer_steps: int = 0
    seconds: float = 0.0  # wall-clock time of training
    cpu_seconds: float | None = 0.0  # CPU time of all processes in training; None on a GPU
    overhead_seconds: float = 0.0  # part of ``seconds``: drawing plans and update(), with the mean
    evaluation_seconds: float = 0.0  # not part of ``seconds``
    selection_seconds: float = 0.0  # part of ``seconds``: choosing the coreset, with its proxy
    selection_passes: int = 0  # part of ``samples_forwarded``, likewise
    peak_memory_mb: float | None = None  # of the GPU if there is one; None if unknown


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run; all but the metric have six significant digits."""

    epoch: int
    metric: float | None  # None if it was not evaluated or not finite
    train_loss: float | None
    kept_fraction: float
    samples: int
    samples_saved: int  # in all epochs so far
    thresholds: tuple[float, ...]
    learning_rate: float
    seconds: float
    added_noise: float | None = None  # None for the arm ``stream``
    realised_noise: float | None = None  # None if it was not measured


@dataclass(frozen=True)
class Record:
    """A finished run: one record of results.json.

    ``settings``, ``versions`` and ``hardware`` are as they were stored; their names depend on the
    version of infobatch and on the machine.
    """

    arm: str
    length: float
    seed: int
    settings: Mapping[str, Any]
    metric: float | None  # the last epoch's on the test set; None if it was not finite
    costs: Costs
    num_samples: int
    num_test: int
    full_passes: int  # what training on all data at full length takes
    saved_fraction: float
    history: tuple[Epoch, ...]
    versions: Mapping[str, str]
    hardware: Mapping[str, str | int]
    finished_at: str  # ISO 8601, UTC
    extra_metrics: Mapping[str, float | None] = field(default_factory=dict)  # of the finished model
    shadows: Mapping[str, tuple[EpochPasses, ...]] = field(
        default_factory=dict
    )  # arms followed by it

    @property
    def leader(self) -> str | None:
        """The arm whose cost this one matches, if any."""
        leader: str | None = self.settings.get("leader")
        return leader

    @property
    def machine(self) -> str:
        """The GPU, or the processor with its model, and the threads.

        Records of earlier versions lack the model; there the system has to tell apart the processors to which
        a cloud gives one name.
        """
        stated = self.hardware
        count = stated["threads"]
        threads = f"{count} {'thread' if count == 1 else 'threads'}"
        if "gpu" in stated:
            return f"{stated['gpu']}, {threads}"
        model = stated.get("model") or stated.get("system", "unknown")
        return f"{stated['processor']} ({model}), {threads}"


def seconds_to_compare(records: Sequence[Record]) -> Seconds | None:
    """CPU time if every run has it, since it hardly depends on the machine's other load.

    On a GPU there is only wall-clock time. None if the runs of a seed, which are compared with each
    other, were made on different machines.
    """
    machines = {(record.seed, record.machine) for record in records}
    if len(machines) > len({record.seed for record in records}):
        return None
    return "seconds" if any(not record.costs.cpu_seconds for record in records) else "cpu_seconds"


@dataclass(frozen=True)
class Summary:
    """The finished runs of an arm at a length.

    ``metric`` covers the seeds with a finite value, None without any, and ``diverged`` counts the
    others. Costs are means over all seeds.
    """

    arm: str
    length: float
    seeds: tuple[int, ...]
    metric: Estimate | None
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

    def mean(cost: Callable[[Costs], float]) -> float:
        return float(np.mean([cost(record.costs) for record in records]))

    def mean_if_known(cost: Callable[[Costs], float | None]) -> float | None:
        values = [value for record in records if (value := cost(record.costs)) is not None]
        return float(np.mean(values)) if values else None

    return Summary(
        arm=arm,
        length=length,
        seeds=tuple(sorted(record.seed for record in records)),
        metric=estimate(metrics) if metrics else None,
        diverged=len(records) - len(metrics),
        samples_forwarded=mean(lambda costs: costs.samples_forwarded),
        samples_backpropagated=mean(lambda costs: costs.samples_backpropagated),
        optimizer_steps=mean(lambda costs: costs.optimizer_steps),
        seconds=mean(lambda costs: costs.seconds),
        cpu_seconds=mean_if_known(lambda costs: costs.cpu_seconds),
        overhead_seconds=mean(lambda costs: costs.overhead_seconds),
        peak_memory_mb=mean_if_known(lambda costs: costs.peak_memory_mb),
        saved_fraction=float(np.mean([record.saved_fraction for record in records])),
        leader=records[0].leader,
    )


def mean_and_deviation(metric: Estimate | None, digits: int) -> str:
    """``89.31 ± 0.12``, without a deviation if there is only one seed."""
    if metric is None:
        return "diverged"
    words = f"{metric.mean:.{digits}f}"
    return words if metric.sd is None else f"{words} ± {metric.sd:.{digits}f}"
