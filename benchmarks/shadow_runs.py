"""One ordinary run with shadows for every task with measured savings: what would have been forecast?

    python benchmarks/shadow_runs.py [NAME …] [--data DIR] [--only-missing]

NAME is a study of ``benchmarks/evidence/studies.py``; by default all of ``TASKS``. Each is trained once on all data
with the study's settings and the learning rate that was chosen for all data, with a seed that the study does not have, while
its rules are followed. ``benchmarks/results/forecast/NAME.json`` gets, for each rule and epoch, the share kept,
the noise promised and the noise realised:

* ``shadow``: as ``InfoBatch(shadow=…)`` has it, where only the samples that the rule would have visited reach its memory;
* ``fresh``: the alternative, where every visit does, so that no score is older than an epoch;
* ``pruned``: for the tasks of ``REAL``, of a run that was really pruned, with the same seed.

A run that was stopped continues with the same command. ``make results`` writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "evidence"))
from studies import Study, study_of

from infobatch.distributed.ranks import Ranks
from infobatch.files import write_atomically
from infobatch.forecast.realised import realised_noise, sums_of
from infobatch.lab.compare.results import read_results
from infobatch.lab.options import parse_options
from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.machine import versions
from infobatch.lab.run.result import rounded
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task
from infobatch.plan import FloatArray
from infobatch.policies.gradient import sizing_of
from infobatch.policies.options import Options
from infobatch.policies.planning import Planner
from infobatch.savings import EpochPasses
from infobatch.tracks import Window

ROOT = Path(__file__).parents[1]
STORED = ROOT / "benchmarks" / "results"
OUTPUT = Path("evidence-output") / "forecast"
SEED = 100
TASKS = (
    "demo",
    "fresh-fashion",
    "wrong-labels-fashion",
    "frontier-covertype",
    "wide-cifar10",
    "frontier-cifar10",
    "few-epochs-alpaca",
    "few-epochs-gsm8k",
    "frontier-camvid",
    "frontier-mae",
    "frontier-diffusion",
    "table4-fashion",
    "table7-sgd",
    "table7-adamw",
    "table7-lars",
    "table7-lamb",
    "table6-small_resnet",
    "table6-resnet",
    "table6-vit",
    "table9-alpaca",
)
REAL = ("demo", "frontier-covertype", "frontier-cifar10")

Rows = list[list[float | None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=TASKS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only-missing", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.names:
        path = STORED / "forecast" / f"{name}.json"
        if not (arguments.only_missing and path.exists()):
            measured = measure(study_of(name), arguments.data)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(measured, allow_nan=False)
            write_atomically(path, lambda file, text=text: file.write_text(f"{text}\n"))
            print(path, flush=True)


def measure(study: Study, data: Path | None) -> dict[str, Any]:
    """Make the run, and what would have been followed differently."""
    arms = followed(study)
    run = trained(study, "full", arms, data)
    losses = run.train_data._course.current_memory().columns["window"]
    shadows = run._followed()
    assert losses.shape == (run.num_samples, run.epochs)
    fresh = {arm: follow_every_visit(options, losses) for arm, options in run.shadows.items()}
    pruned = {}
    if study.name in REAL:
        for arm in arms:
            real = trained(study, arm.name, (), data)
            pruned[arm.name] = rows(real.train_data.savings.epochs)
    return {
        "study": study.name,
        "command": f"python benchmarks/shadow_runs.py {study.name}",
        "seed": SEED,
        "settings": asdict(run.settings),
        "num_samples": run.num_samples,
        "epochs": run.epochs,
        "columns": ["kept", "promised noise", "realised noise"],
        "shadow": {arm: rows(epochs) for arm, epochs in shadows.items()},
        "fresh": {arm: rows(epochs) for arm, epochs in fresh.items()},
        "pruned": pruned,
        "versions": versions(),
    }


def followed(study: Study) -> list[Arm]:
    return [arm for arm in parse_arms(study.arms) if arm.can_be_followed]


def trained(study: Study, arm: str, shadows: Sequence[Arm], data: Path | None) -> Run:
    """A finished run of a study's task, its losses remembered if it has shadows."""
    stored = read_results(STORED / study.name).settings
    options = parse_options(list(study.options))
    task = load_task(study.task, data=data, options=options, smoke=False)
    rate = stored.chosen_rates.get(arm, stored.learning_rate)
    settings = settings_of(task, arm=arm, seed=SEED, options=options, learning_rate=rate)
    folder = OUTPUT / study.name / Arm(arm).folder_name
    folder.mkdir(parents=True, exist_ok=True)
    tracks = (Window(settings.epochs),) if shadows else ()
    run = Run(task, settings, folder, shadows=shadows, tracks=tracks)

    def report(standing: dict[str, Any]) -> None:
        print(f"{study.name} {arm} {standing['done']:.0%}", file=sys.stderr, flush=True)

    run.train(report)
    return run


def follow_every_visit(options: Options, losses: FloatArray) -> list[EpochPasses]:
    """Follow a rule into whose memory every visit is folded, as if it had pruned nothing."""
    count, epochs = losses.shape
    planner = Planner.of(count, epochs, options).silent()
    memory, passes = planner.new_memory(Ranks()), []
    for epoch in range(epochs):
        visit = np.ascontiguousarray(losses[:, epoch])
        plan = planner.draw(memory, Ranks(), passes, epoch=epoch, seed=SEED)
        noise = realised_noise(sums_of(plan, visit, sizing_of(planner.policy)))
        size = len(plan)
        passes.append(
            EpochPasses(
                epoch, count, size, size, 0, (), plan.added_noise, None, realised_noise=noise
            )
        )
        known = np.flatnonzero(~np.isnan(visit))
        memory.fold([(known, visit[known])], epoch)
    return passes


def rows(epochs: Sequence[EpochPasses]) -> Rows:
    return [
        [
            rounded(epoch.kept_cost),
            rounded(epoch.added_noise),
            None if epoch.realised_noise is None else rounded(epoch.realised_noise),
        ]
        for epoch in epochs
    ]


if __name__ == "__main__":
    main()
