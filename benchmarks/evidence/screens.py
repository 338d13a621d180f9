"""The screens of rules as Markdown: what each variant saved and what all data would have needed to be as good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infobatch.lab.stats.frontier import Frontier, Point, frontier
from infobatch.lab.stats.intervals import signed
from infobatch.lab.stats.pairing import Measurement, PairedRuns
from infobatch.lab.stats.runs import label_of

LOSS = "cross-entropy"  # less noisy than the accuracy, which has a step per test image
OWN_RULES = "benchmarks/screen_rules.py:"


def screen_tables(path: Path) -> list[str]:
    """A table for each learning rate, the variants in the order of their savings at equal loss."""
    runs = json.loads(path.read_text())["runs"]
    variants = {run["arm"] for run in runs if run["arm"] != "full"}
    lines = [
        f"{len(variants)} variants were tried, in {len(runs)} runs with those on all data.",
        "",
    ]
    for rate in sorted({run["learning_rate"] for run in runs}):
        chosen = [run for run in runs if run["learning_rate"] == rate]
        by_loss, by_accuracy = placed(chosen, LOSS, better=False), placed(chosen, "metric")
        if len(by_loss.curve) < 2:
            continue
        accuracies = {(point.arm, point.length): point for point in by_accuracy.points}
        curve = ", ".join(f"{knot.quality:.4f} at {knot.length:g}" for knot in by_loss.curve)
        lines += [
            f"Learning rate {rate:g}; all data's test loss by length: {curve}.",
            "",
            "| rule | seeds | passes saved | test loss | accuracy, points | saved at equal test loss |",
            "|---|---|---|---|---|---|",
            *(
                row(point, accuracies[point.arm, point.length])
                for point in sorted(by_loss.points, key=estimate, reverse=True)
                if point.saving is not None and point.to_full is not None
            ),
            "",
        ]
    return lines


def placed(runs: list[dict[str, Any]], quality: str, *, better: bool = True) -> Frontier:
    """The runs of one learning rate on the frontier of all data at that rate."""
    measured = [
        Measurement(run["arm"], run["length"], run["seed"], run["cost"], run[quality])
        for run in runs
    ]
    return frontier(PairedRuns(measured, higher_is_better=better))


def row(point: Point, accuracy: Point) -> str:
    assert point.saving is not None
    assert point.saved is not None
    # A difference is above zero where the arm is better, and a loss is better where it is lower.
    loss = 0.0 - point.to_full.mean if point.to_full else float("nan")
    points = accuracy.to_full.mean if accuracy.to_full else float("nan")
    name = label_of(point.arm.removeprefix(OWN_RULES))
    length = "" if point.length == 1 else f", length {point.length:g}"
    return (
        f"| `{name}`{length} | {len(point.seeds)} | {point.saved:.0%} | {signed(loss, 4)} "
        f"| {signed(points, 2)} | {point.saving.text} |"
    )


def estimate(point: Point) -> float:
    return point.saving.estimate if point.saving else float("-inf")
