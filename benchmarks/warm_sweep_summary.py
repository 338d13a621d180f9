# python benchmarks/warm_sweep_summary.py
"""The table of docs/few-epochs.md, from what warm_sweep.py has stored."""

from __future__ import annotations

import json
from pathlib import Path

RECORD = Path(__file__).parent / "results" / "warm_sweep_tuned.json"
ARMS = {
    "warm": "warm",
    "cold": "cold: pruned without scores",
    "short": "short: all data, fewer steps",
}


def main():
    summary = json.loads(RECORD.read_text())["summary"]
    print(
        "| the three runs after the first | saved of the sweep | accuracy against all data, points |"
    )
    print("|---|---|---|")
    for arm, name in ARMS.items():
        row = summary[arm]
        difference = f"{row['difference']:+.2f} ± {row['standard_error']:.2f}".replace("-", "−")
        print(f"| {name} | {row['saved']:.1%} | {difference} |")


if __name__ == "__main__":
    main()
