"""Print the README's table from the stored runs of the demo: mean ± standard deviation over seeds.

python benchmarks/demo_summary.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "demo"


def summary() -> str:
    runs: dict[str, list[dict]] = {}
    for path in sorted(RESULTS.glob("seed-*/results.json")):
        for run in json.loads(path.read_text())["runs"]:
            runs.setdefault(f"{run['arm']}, {run['epochs']} epochs", []).append(run)
    lines = ["| training | test accuracy | sample passes saved |", "|---|---|---|"]
    for arm, group in runs.items():
        accuracies = [run["accuracy"] for run in group]
        saved = statistics.mean(run["saved_fraction"] for run in group)
        accuracy = f"{statistics.mean(accuracies):.1f} ± {statistics.stdev(accuracies):.1f}"
        lines.append(f"| {arm} | {accuracy} | {saved:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
