"""The stored comparisons, with what the lab of today concludes from their runs; and the runs that they share."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from infobatch.lab.compare.results import Results, labelled, read_results
from infobatch.lab.stats.decision import conclude
from infobatch.lab.stats.runs import Question, Record

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks" / "results"
# What makes two runs the same run, whatever the comparison. Not the metric: another machine may round otherwise.
IDENTITY = ("task", "arm", "seed", "length", "epochs", "batch_size", "learning_rate", "budget")


def is_stored(name: str) -> bool:
    """Whether a study has results."""
    return (STORED / name / "results.json").exists()


@cache
def stored_results(name: str) -> Results:
    """The results of a study; its conclusions may have been drawn by an earlier version."""
    results = read_results(STORED / name)
    return replace(results, conclusions=conclude(results.runs, question_of(results)))


@cache
def shown_results(name: str) -> Results:
    """The same, with the names of arms that tables and sentences show."""
    return labelled(stored_results(name))


def question_of(results: Results) -> Question:
    """What was fixed before the first run."""
    settings = results.settings
    return Question(
        margin=settings.margin,
        higher_is_better=settings.higher_is_better,
        unit=settings.unit,
        epochs=settings.epochs,
        settings={arm: f"learning rate {rate:g}" for arm, rate in settings.chosen_rates.items()},
        most_seeds=settings.most_seeds,
    )


def identity(run: Record) -> Hashable:
    """Equal for two runs that are the same: made once, or again with the same settings and seed."""
    options = json.dumps(run.settings.get("options", {}), sort_keys=True)
    return (*(run.settings.get(name) for name in IDENTITY), options)


def shared_runs(name: str, others: Sequence[str]) -> Mapping[str, list[tuple[Record, Record]]]:
    """The runs of a study that each of the others has, too, beside the other's; those without any are left out."""
    runs = {identity(run): run for run in stored_results(name).runs}
    shared = {
        other: [
            (runs[identity(run)], run)
            for run in stored_results(other).runs
            if identity(run) in runs
        ]
        for other in others
        if other != name
    }
    return {other: pairs for other, pairs in shared.items() if pairs}


def largest_difference(pairs: Iterable[tuple[Record, Record]]) -> tuple[int, float]:
    """How many runs have another metric where they were made again, and by how much at most.

    A run that several other studies have counts once.
    """
    differences: dict[Hashable, float] = {}
    for first, second in pairs:
        if first.metric is not None and second.metric is not None:
            difference = abs(first.metric - second.metric)
            differences[identity(first)] = max(differences.get(identity(first), 0.0), difference)
    return sum(map(bool, differences.values())), max(differences.values(), default=0.0)
