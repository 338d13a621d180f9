"""The files of a comparison: one folder per run, and results.json with the finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infobatch.files import write_atomically
from infobatch.lab.files import read_json
from infobatch.lab.run.arms import Arm
from infobatch.lab.run.result import RESULT_FILE, read_result

SCHEMA_VERSION = 2
RUNS, SWEEP, SELECTIONS = "runs", "sweep", "selections"


def run_folder(out: Path, arm: str, seed: int, *, length: float = 1.0) -> Path:
    """The folder of a run's checkpoint and, in the end, its result."""
    return out / RUNS / f"{Arm(arm).folder_name}-{length:g}-{seed}"


def sweep_folder(out: Path, arm: str, learning_rate: float, seed: int) -> Path:
    """The same for a run that tries a learning rate."""
    return out / SWEEP / f"{Arm(arm).folder_name}-{learning_rate!r}-{seed}"


def finished_runs(out: Path) -> list[dict[str, Any]]:
    """The records of all finished runs in a comparison's folder; copies do not count."""
    return [
        run
        for folder, run in _records(out / RUNS)
        if folder == run_folder(out, run["arm"], run["seed"], length=run["length"])
    ]


def tried_rates(out: Path) -> list[dict[str, Any]]:
    """The records of all runs that tried a learning rate."""
    return [
        run
        for folder, run in _records(out / SWEEP)
        if folder == sweep_folder(out, run["arm"], run["settings"]["learning_rate"], run["seed"])
    ]


def _records(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    folders = sorted(path.parent for path in folder.glob(f"*/{RESULT_FILE}"))
    return [(path, run) for path in folders if (run := read_result(path)) is not None]


def write_results(
    out: Path, settings: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], **more: Any
) -> Path:
    """Write results.json: the schema's version, the comparison's settings, one record per run.

    Each run is on one line, because indentation would make up most of a file with long histories.
    """
    path = out / "results.json"
    head = json.dumps({"schema": SCHEMA_VERSION, **more, **settings}, indent=1, allow_nan=False)
    lines = [json.dumps(run, allow_nan=False, separators=(",", ":")) for run in runs]
    text = head.removesuffix("\n}") + ',\n "runs": [\n' + ",\n".join(lines) + "\n ]\n}\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
    return path


def read_results(out: Path) -> dict[str, Any]:
    """Read results.json from a comparison's folder."""
    path = out / "results.json" if out.is_dir() else out
    if not path.exists():
        raise ValueError(
            f"There is no {path}. Expected the --out folder of `infobatch compare`, after at least "
            "one finished run."
        )
    results: dict[str, Any] = read_json(
        path, remedy="Delete it: `infobatch compare` writes it again from the finished runs."
    )
    if results.get("schema") != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema {results.get('schema')!r}, this infobatch reads {SCHEMA_VERSION}. "
            "Use the version of infobatch that wrote it, or another --out."
        )
    return results
