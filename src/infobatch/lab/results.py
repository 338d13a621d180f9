"""The files of a comparison: one folder a run, and results.json with a record of each finished one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infobatch.lab.files import read_json, write_atomically

SCHEMA_VERSION = 1
RESULT_FILE = "result.json"


def run_folder(out: Path, arm: str, seed: int, *, kind: str = "runs") -> Path:
    """Where a run keeps its checkpoint and, in the end, its result."""
    return out / kind / f"{arm}-{seed}"


def read_result(folder: Path) -> dict[str, Any] | None:
    """A finished run's record, or None."""
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    record: dict[str, Any] = read_json(path, remedy=f"Delete {folder}: the run is then made anew.")
    return record


def finished_runs(out: Path, *, kind: str = "runs") -> list[dict[str, Any]]:
    """The records of all finished runs in a comparison's folder; copies beside them do not count."""
    folders = sorted(path.parent for path in (out / kind).glob(f"*/{RESULT_FILE}"))
    return [
        record
        for folder in folders
        if (record := read_result(folder)) is not None
        and folder.name.startswith(f"{record['arm']}-")
        and folder.name.endswith(f"-{record['seed']}")
    ]


def write_results(
    out: Path, settings: dict[str, Any], runs: Sequence[dict[str, Any]], **more: Any
) -> Path:
    """Write results.json: the schema's version, the comparison's settings, one record a run."""
    path = out / "results.json"
    results = {"schema": SCHEMA_VERSION, **settings, **more, "runs": list(runs)}
    text = json.dumps(results, indent=1) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
    return path


def read_results(out: Path) -> dict[str, Any]:
    """Read results.json of a comparison's folder."""
    path = out / "results.json" if out.is_dir() else out
    if not path.exists():
        raise ValueError(
            f"There is no {path}. Expected the --out folder of `infobatch compare`, after at least "
            "one finished run."
        )
    results: dict[str, Any] = read_json(
        path, remedy="Delete it: `infobatch compare` writes it anew from the finished runs."
    )
    if results.get("schema") != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema {results.get('schema')!r}, this infobatch reads {SCHEMA_VERSION}. "
            "Use the version of infobatch that wrote it."
        )
    return results
