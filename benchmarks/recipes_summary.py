# python benchmarks/recipes_summary.py [spreads]
"""The tables of docs/results/seconds.md and, with ``spreads``, of docs/policies/noise.md, from what recipes.py stored."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "results" / "recipes.json"
TAU = 0.2


def main() -> None:
    recipes = json.loads(RECORD.read_text())["recipes"]
    table = spreads if sys.argv[1:] == ["spreads"] else seconds
    print("\n".join(table(recipes)))


def seconds(recipes: dict[str, Any]) -> list[str]:
    """Passes and seconds saved, of each rule."""
    lines = [
        "| recipe | rule | passes saved | seconds saved | seconds saved / passes saved | pruning took |",
        "|---|---|---|---|---|---|",
    ]
    for name, recipe in recipes.items():
        full, *arms = by_arm(recipe)
        for arm in arms:
            passes = 1 - mean(arm, "passes") / mean(full, "passes")
            saved = 1 - mean(arm, "seconds") / mean(full, "seconds")
            took = mean(arm, "pruning_seconds") / mean(arm, "seconds")
            rule = arm[0]["arm"].partition(":")[0]
            lines.append(
                f"| `{name}` | `{rule}` | {passes:.1%} | {saved:.1%} | {saved / passes:.2f} | {took:.2%} |"
            )
    return lines


def spreads(recipes: dict[str, Any]) -> list[str]:
    """How much losses and gradients differ on all data, and what the noise budget leaves out."""
    lines = [
        "| recipe | spread of the losses | spread s of the gradients' sizes | 1 − 1 / ((1 + τ)(1 + s²)) | left out by `auto` |",
        "|---|---|---|---|---|",
    ]
    for name, recipe in recipes.items():
        full, _, noise = by_arm(recipe)
        loss, gradient = (full[0]["spreads"][kind][-1] for kind in ("loss", "gradient"))
        expected = 1 - 1 / ((1 + TAU) * (1 + gradient**2))
        left_out = 1 - noise[0]["kept"][-1]
        lines.append(
            f"| `{name}` | {loss:.2f} | {gradient:.2f} | {expected:.0%} | {left_out:.0%} |"
        )
    return lines


def by_arm(recipe: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The two runs of each arm, in the order in which the arms were first trained."""
    runs = recipe["runs"]
    half = len(runs) // 2
    return [
        [first, second] for first, second in zip(runs[:half], runs[: -half - 1 : -1], strict=True)
    ]


def mean(runs: list[dict[str, Any]], cost: str) -> float:
    return statistics.mean(run[cost] for run in runs)


if __name__ == "__main__":
    main()
