# python benchmarks/warm_sweep_summary.py
"""The table of the sweep in docs/few-epochs.md, from what warm_sweep.py has stored."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from scipy import stats
from warm_sweep import differences, saved

RECORD = Path(__file__).parent / "results" / "warm_sweep.json"
ARMS = {
    "warm": "warm",
    "cold": "cold: pruned without scores",
    "short": "short: all data, fewer steps",
}


def interval(values):
    """The mean with its 95% interval over seeds (Student's t)."""
    mean, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    reach = stats.t.ppf(0.975, len(values) - 1) * error
    return f"{mean:+.2f} ({mean - reach:+.2f} to {mean + reach:+.2f})".replace("-", "−")


def main():
    runs = json.loads(RECORD.read_text())["runs"]
    print(
        "| the three runs after the first | saved of the sweep | against all data | against short |"
    )
    print("|---|---|---|---|")
    for arm, name in ARMS.items():
        to_full = interval(differences(runs, arm, "full"))
        to_short = "" if arm == "short" else interval(differences(runs, arm, "short"))
        print(f"| {name} | {saved(runs, arm):.1%} | {to_full} | {to_short} |")


if __name__ == "__main__":
    main()
