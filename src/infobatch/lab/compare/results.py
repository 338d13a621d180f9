"""The files of a comparison: one folder per run, and results.json with the finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infobatch.files import write_atomically
from infobatch.lab.files import from_json, read_json, to_json
from infobatch.lab.run.arms import Arm
from infobatch.lab.run.result import RESULT_FILE, read_result
from infobatch.lab.stats.decision import Conclusions
from infobatch.lab.stats.frontier import Point
from infobatch.lab.stats.rates import RateSummary
from infobatch.lab.stats.runs import Record, Summary, label_of, summarise

SCHEMA_VERSION = 2
RESULTS_FILE = "results.json"
RUNS, SWEEP, SELECTIONS = "runs", "sweep", "selections"


@dataclass(frozen=True)
class RateRun:
    """A run of the grid: what it reached on its validation split, and what it cost."""

    arm: str
    learning_rate: float
    seed: int
    metric: float | None
    samples_forwarded: int
    seconds: float


@dataclass(frozen=True)
class RateCost:
    """What the choice of learning rates cost; ``share`` is of all sample passes."""

    runs: int
    samples_forwarded: int
    share: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a comparison, and how its learning rates were chosen."""

    task: str
    epochs: int
    batch_size: int
    learning_rate: float
    smoke: bool
    options: Mapping[str, str]
    task_hash: str | None
    metric: str
    unit: str
    counts_items: bool
    higher_is_better: bool
    margin: float
    class_names: tuple[str, ...]
    most_seeds: int | None
    learning_rates: tuple[float, ...]  # the grid
    rate_seeds: int | None
    rate_length: float | None
    arms: tuple[str, ...]
    lengths: tuple[float, ...]
    seeds: tuple[int, ...]
    stated_seeds: tuple[int, ...]
    leader: str | None
    chosen_rates: Mapping[str, float]
    rates: tuple[RateSummary, ...]
    tried_rates: tuple[RateRun, ...]
    rate_cost: RateCost | None
    command: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Results:
    """The content of results.json."""

    settings: Settings
    conclusions: Conclusions
    runs: tuple[Record, ...]

    @property
    def summaries(self) -> list[Summary]:
        """One row per arm and length: arms in their order, longest training first."""
        return summarise(self.runs, arms=self.settings.arms)

    def point(self, arm: str, length: float) -> Point | None:
        """An arm's point on the frontier; None for full data, and until it has a curve."""
        frontier = self.conclusions.frontier
        points = () if frontier is None else frontier.points
        return next((p for p in points if (p.arm, p.length) == (arm, length)), None)


def run_folder(out: Path, arm: str, seed: int, *, length: float = 1.0) -> Path:
    """The folder of a run's checkpoint and, in the end, its result."""
    return out / RUNS / f"{Arm(arm).folder_name}-{length:g}-{seed}"


def sweep_folder(out: Path, arm: str, learning_rate: float, seed: int) -> Path:
    """The same for a run that tries a learning rate."""
    return out / SWEEP / f"{Arm(arm).folder_name}-{learning_rate!r}-{seed}"


def finished_runs(out: Path) -> list[Record]:
    """The records of all finished runs in a comparison's folder; copies do not count."""
    return [
        run
        for folder, run in _records(out / RUNS)
        if folder == run_folder(out, run.arm, run.seed, length=run.length)
    ]


def tried_rates(out: Path) -> list[Record]:
    """The records of all runs that tried a learning rate."""
    return [
        run
        for folder, run in _records(out / SWEEP)
        if folder == sweep_folder(out, run.arm, run.settings["learning_rate"], run.seed)
    ]


def _records(folder: Path) -> list[tuple[Path, Record]]:
    folders = sorted(path.parent for path in folder.glob(f"*/{RESULT_FILE}"))
    return [(path, run) for path in folders if (run := read_result(path)) is not None]


def write_results(out: Path, results: Results) -> Path:
    """Write results.json: the schema's version, the conclusions, the settings, one record per run.

    Each run is on one line, because indentation would make up most of a file with long histories.
    """
    path, text = out / RESULTS_FILE, _text(results)
    write_atomically(path, lambda temporary: temporary.write_text(text))
    return path


def _text(results: Results) -> str:
    conclusions, settings = to_json(results.conclusions), to_json(results.settings)
    conclusions["verdicts"] = list(map(_verdict_to_json, conclusions["verdicts"]))
    head = json.dumps(
        {"schema": SCHEMA_VERSION, **conclusions, **settings}, indent=1, allow_nan=False
    )
    lines = [
        json.dumps(to_json(run), allow_nan=False, separators=(",", ":")) for run in results.runs
    ]
    return head.removesuffix("\n}") + ',\n "runs": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def labelled(results: Results) -> Results:
    """The same results with the names of arms as tables and figures show them, in sentences too."""
    names = [label_of(arm) for arm in results.settings.arms]
    if len(set(names)) < len(names) or names == list(results.settings.arms):
        return results
    return results_from_json(json.loads(label_of(_text(results))))


def read_results(out: Path) -> Results:
    """Read results.json from a comparison's folder, or a copy of that file.

    Raises:
        ValueError: if there is none, if it is damaged, or if it has another version's schema.
    """
    path = out / RESULTS_FILE if out.is_dir() else out
    if not path.exists():
        raise ValueError(
            f"There is no {path}. Expected the --out folder of `infobatch compare`, after at least "
            "one finished run."
        )
    remedy = "Delete it: `infobatch compare` writes it again from the finished runs."
    stored = read_json(path, remedy=remedy)
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if schema != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema {schema!r}, this infobatch reads {SCHEMA_VERSION}. Use the version "
            "of infobatch that wrote it, or another --out."
        )
    try:
        return results_from_json(stored)
    except ValueError as error:
        raise ValueError(f"{path} is damaged and cannot be read ({error}). {remedy}") from error


def results_from_json(stored: Mapping[str, Any]) -> Results:
    """Convert the content of results.json to types."""
    settings = from_json(Settings, {"rate_length": None, **stored})
    if settings.learning_rates and settings.rate_length is None:
        # Earlier versions did not store it; it was the shortest.
        settings = replace(settings, rate_length=min(settings.lengths))
    verdicts = stored.get("verdicts")
    if isinstance(verdicts, list):
        stored = {**stored, "verdicts": list(map(_flat_verdict, verdicts))}
    return Results(
        settings=settings,
        conclusions=from_json(Conclusions, stored),
        runs=from_json(_Runs, stored).runs,
    )


@dataclass(frozen=True)
class _Runs:
    runs: tuple[Record, ...]


# In the file, the word of a verdict and what belongs to it are in an object ``outcome``.
_OUTCOME = ("word", "leans", "more_seeds", "text")


def _verdict_to_json(verdict: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in verdict.items() if name not in _OUTCOME}
    return {**others, "outcome": {name: verdict[name] for name in _OUTCOME}}


def _flat_verdict(verdict: Any) -> Any:
    outcome = verdict.get("outcome") if isinstance(verdict, dict) else None
    return {**verdict, **outcome} if isinstance(outcome, dict) else verdict
