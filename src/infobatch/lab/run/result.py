"""The files of a finished run: its result, and per-sample data for the report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infobatch.lab.files import read_json

RESULT_FILE = "result.json"


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
class Result:
    """A finished run: one record of results.json."""

    arm: str
    length: float
    seed: int
    settings: dict[str, Any]
    metric: float | None  # the last epoch's on the test set; None if it was not finite
    costs: dict[str, Any]
    num_samples: int
    num_test: int
    full_passes: int  # what training on all data at full length takes
    saved_fraction: float
    history: list[dict[str, Any]]
    versions: dict[str, str]
    hardware: dict[str, str | int]
    finished_at: str  # ISO 8601, UTC
    extra_metrics: dict[str, float | None] = field(default_factory=dict)  # of the finished model


def rounded(value: float) -> float:
    """Round to six significant digits, enough for a value per epoch in a large file."""
    return float(f"{value:.6g}")


def finite(value: float) -> float | None:
    """The value, or None for NaN and infinities of a diverged run, which JSON cannot hold."""
    return value if math.isfinite(value) else None


def read_result(folder: Path) -> dict[str, Any] | None:
    """A finished run's record, or None."""
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    record: dict[str, Any] = read_json(path, remedy=f"Delete {folder}, and the run is repeated.")
    return record
