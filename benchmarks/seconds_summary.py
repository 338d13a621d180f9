# python benchmarks/seconds_summary.py
"""The first table of docs/results/seconds.md, from what seconds.py has stored."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RECORD = Path(__file__).parent / "results" / "seconds.json"


def main() -> None:
    recipes = json.loads(RECORD.read_text())["recipes"]
    print("| recipe | rule | passes saved | seconds saved / passes saved | pruning took |")
    print("|---|---|---|---|---|")
    for name, recipe in recipes.items():
        full, *arms = recipe["arms"].items()
        for arm, epochs in arms:
            print(row(name, arm.partition(":")[0], full[1], epochs))


def row(name: str, rule: str, full: list[dict[str, float]], arm: list[dict[str, float]]) -> str:
    """Over the pruned epochs, each compared with the same epoch on all data."""
    pairs = [(a, b) for a, b in zip(full, arm, strict=True) if b["passes"] < a["passes"]]
    passes = statistics.mean(1 - b["passes"] / a["passes"] for a, b in pairs)
    ratios = [(1 - b["seconds"] / a["seconds"]) / (1 - b["passes"] / a["passes"]) for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    took = sum(b["pruning_seconds"] for _, b in pairs) / sum(b["seconds"] for _, b in pairs)
    return (
        f"| `{name}` | `{rule}` | {passes:.1%} | {middle:.2f} ({low:.2f}–{high:.2f}) | {took:.2%} |"
    )


if __name__ == "__main__":
    main()
