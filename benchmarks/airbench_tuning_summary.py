"""Print the runs by which ``cifar10 network=airbench`` was tuned, for docs/recipes.md."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "airbench_tuning"
USUAL = {"batch": 500, "decay": 5e-4, "smoothing": 0.2, "momentum": 0.9, "bias": 1.0, "seed": 0}
NAMES = {"smoothing": "label smoothing", "decay": "weight decay", "bias": "rate of biases ×"}


def main():
    """One line per run, the cheapest first."""
    print(
        "| widths | epochs | rate | otherwise | arm | measured on | accuracy | of training images "
        "| core-minutes | core-seconds per 50,000 passes |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    runs = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    for run in sorted(runs, key=lambda run: run["costs"]["samples_forwarded"]):
        choice, seconds = run["choice"], run["costs"]["cpu_seconds"]
        others = [
            f"{NAMES.get(name, name)} {choice[name]:g}"
            for name, value in USUAL.items()
            if choice[name] != value
        ]
        others += [choice["precision"]] * (choice["precision"] != "bfloat16")
        print(
            f"| {choice['widths']} | {choice['epochs']} | {choice['rate']:g} | {', '.join(others)} "
            f"| `{choice['arm']}` | {'test' if choice['test'] else 'validation'} "
            f"| {run['accuracy']:.2f} | {run['training_accuracy']:.2f} | {seconds / 60:.1f} "
            f"| {50_000 * seconds / run['costs']['samples_forwarded']:.1f} |"
        )


if __name__ == "__main__":
    main()
