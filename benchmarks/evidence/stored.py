"""The stored comparisons, with what the lab of today concludes from their runs; and the runs that they share."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from infobatch.lab.compare.results import Results, labelled, read_results
from infobatch.lab.stats.decision import conclude
from infobatch.lab.stats.runs import Question, Record

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks" / "results"
# What makes two runs the same run, whatever the comparison; the metric is compared, too.
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
    return (*(run.settings.get(name) for name in IDENTITY), options, run.metric)


def shared_runs(name: str, others: Sequence[str]) -> Mapping[str, int]:
    """How many runs of a study each of the others has, too; those that have none are left out."""
    identities = {identity(run) for run in stored_results(name).runs}
    counts = {
        other: sum(identity(run) in identities for run in stored_results(other).runs)
        for other in others
        if other != name
    }
    return {other: count for other, count in counts.items() if count}
