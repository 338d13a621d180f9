"""Make the runs of a study and store them.

    python benchmarks/evidence/run.py                              # the studies, and how far each has come
    python benchmarks/evidence/run.py table4-fashion [--data DIR] [--jobs 2]

Runs are made in ``evidence-output/NAME``. Once a minute, what is finished is stored in ``benchmarks/results/NAME``,
the histories of epochs for the first seed only: a machine that goes away takes the runs under way with it, and no
others. Run the same command to resume, on another machine too: the folder is made again from what is stored.
``make results`` renders the pages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from studies import STUDIES, Study, study_of

from infobatch.files import write_atomically
from infobatch.lab.commands import parse_lengths
from infobatch.lab.compare.results import (
    finished_runs,
    read_results,
    run_folder,
    sweep_folder,
    tried_rates,
    write_results,
)
from infobatch.lab.files import from_json, to_json
from infobatch.lab.run.arms import parse_arms
from infobatch.lab.run.result import write_result
from infobatch.lab.stats.runs import Record

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks" / "results"
OUTPUT = Path("evidence-output")
GRID_FILE = "grid.json"  # the runs that chose learning rates
STORE_EVERY = 60  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, help="fewer than the study has, to begin with")
    arguments = parser.parse_args()
    if not arguments.names:
        for study in STUDIES:
            print(f"{study.name:24} {finished(study):4} runs finished of {wanted(study)}")
    for name in arguments.names:
        make(study_of(name), arguments)


def make(study: Study, arguments: argparse.Namespace) -> None:
    """Make the missing runs of a study; store what is finished whatever happens."""
    out = OUTPUT / study.name
    restore(study, out)
    try:
        for words in study.commands(str(out)):
            command = [sys.executable, "-m", "infobatch.lab.cli", *words]
            command += ["--jobs", str(arguments.jobs)]
            if arguments.data is not None:
                command += ["--data", str(arguments.data)]
            if arguments.seeds is not None:
                command[command.index("--seeds") + 1] = str(arguments.seeds)
            run_and_store(command, study, out)
    finally:
        store(study, out)


def run_and_store(command: list[str], study: Study, out: Path) -> None:
    """Run a command, and store what is finished while it runs."""
    with subprocess.Popen(command) as process:
        while True:
            try:
                code = process.wait(STORE_EVERY)
            except subprocess.TimeoutExpired:
                store(study, out)
            else:
                break
    if code:
        raise subprocess.CalledProcessError(code, command)


def store(study: Study, out: Path) -> None:
    """Copy what is finished."""
    store_runs(study, out)
    store_grid(study, out)


def store_runs(study: Study, out: Path) -> None:
    """Copy the runs of the comparison; of the histories, which are long, only those of the first seed."""
    if not (out / "results.json").exists():
        return
    results = read_results(out)
    first = min(results.settings.seeds)
    runs = (run if run.seed == first else without_history(run) for run in results.runs)
    # As a reader would type it: the study's command, not this script's with its folders.
    command = f"python benchmarks/evidence/run.py {study.name}"
    settings = replace(results.settings, command=command)
    folder = STORED / study.name
    folder.mkdir(parents=True, exist_ok=True)
    write_results(folder, replace(results, settings=settings, runs=tuple(runs)))


def store_grid(study: Study, out: Path) -> None:
    """Copy the runs that chose learning rates."""
    tried = [without_history(run) for run in tried_rates(out)]
    if tried:
        folder = STORED / study.name
        folder.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(to_json(run), allow_nan=False) for run in tried)
        write_atomically(folder / GRID_FILE, lambda path: path.write_text(f"[\n{lines}\n]\n"))


def restore(study: Study, out: Path) -> None:
    """Make the folder of finished runs again from what is stored, of this study and of one that has the same runs."""
    if (out / "results.json").exists():
        return
    for name in filter(None, (study.reuses, study.name)):
        restore_runs(study, STORED / name, out)
    results = STORED / study.name / "results.json"
    if results.exists() and grid_of(study) == read_results(results.parent).settings.learning_rates:
        write_atomically(out / "results.json", lambda path: path.write_bytes(results.read_bytes()))


def grid_of(study: Study) -> tuple[float, ...]:
    """The learning rates to choose from; a grid that became wider is a new comparison of the same runs."""
    return tuple(map(float, study.learning_rates.split(","))) if study.learning_rates else ()


def restore_runs(study: Study, stored: Path, out: Path) -> None:
    """Make the folders of those stored runs that are this study's, too."""
    arms = {arm.name for arm in parse_arms(",".join(filter(None, (study.arms, study.controls))))}
    lengths = parse_lengths(study.lengths)
    grid = grid_of(study)
    runs = read_results(stored).runs if (stored / "results.json").exists() else ()
    folders = {
        run_folder(out, run.arm, run.seed, length=run.length): run
        for run in runs
        if run.arm in arms and run.length in lengths and run.seed < study.seeds
        if not grid or run.settings["learning_rate"] in grid
    }
    if grid and (stored / GRID_FILE).exists():
        for stored_run in json.loads((stored / GRID_FILE).read_text()):
            run = from_json(Record, stored_run)
            rate = run.settings["learning_rate"]
            if run.arm in arms and rate in grid:
                folders[sweep_folder(out, run.arm, rate, run.seed)] = run
    for folder, run in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_result(folder, run)


def without_history(run: Record) -> Record:
    return replace(run, history=())


def finished(study: Study) -> int:
    """How many runs are stored or in the output's folder, those of the grid not counted."""
    stored = STORED / study.name
    in_store = len(read_results(stored).runs) if (stored / "results.json").exists() else 0
    return max(len(finished_runs(OUTPUT / study.name)), in_store)


def wanted(study: Study) -> int:
    return len(study.cells) * study.seeds


if __name__ == "__main__":
    main()
