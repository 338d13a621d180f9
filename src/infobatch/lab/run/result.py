"""The file of a finished run's record, and its numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

from infobatch.files import write_atomically
from infobatch.lab.files import from_json, read_json, to_json
from infobatch.lab.stats.runs import Record

RESULT_FILE = "result.json"


def rounded(value: float) -> float:
    """Round to six significant digits, enough for a value per epoch in a large file."""
    return float(f"{value:.6g}")


def finite(value: float) -> float | None:
    """The value, or None for NaN and infinities of a diverged run, which JSON cannot hold."""
    return value if math.isfinite(value) else None


def write_result(folder: Path, record: Record) -> None:
    """Write a finished run's record."""
    text = json.dumps(to_json(record), indent=1, allow_nan=False)
    write_atomically(folder / RESULT_FILE, lambda path: path.write_text(text))


def read_result(folder: Path) -> Record | None:
    """A finished run's record, or None if the run is not finished.

    Raises:
        ValueError: if the file is damaged.
    """
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    remedy = f"Delete {folder}, and the run is repeated."
    stored = read_json(path, remedy=remedy)
    try:
        return from_json(Record, stored)
    except ValueError as error:
        raise ValueError(f"{path} is damaged and cannot be read ({error}). {remedy}") from error
