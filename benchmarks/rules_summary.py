"""Print the tables of docs/performance.md on the rules, from benchmarks/results/rules.json.

python benchmarks/rules_summary.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "rules.json"


def summary() -> str:
    stored = json.loads(RESULTS.read_text())
    rows = stored["rules"]
    mean_ms = statistics.median(row["mean_ms"] for row in rows.values())
    lines = [
        f"| rule | epoch boundary, N = {stored['size']:,} | of the samples kept | bytes per sample remembered |",
        "|---|---|---|---|",
        f"| `mean` | {mean_ms:.0f} ms (1) | | {stored['mean_remembered']:.0f} |",
    ]
    lines += [
        f"| `{name}` | {row['ms']:.0f} ms ({row['ratio']:.2f}) | {row['kept']:.0%} | {row['remembered']:.0f} |"
        for name, row in rows.items()
    ]
    lines += [
        "",
        "| rule, only followed | takes longer by | beside the rule's own boundary |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {row['ms']:.0f} ms | {row['ratio']:.2f} |"
        for name, row in stored["shadows"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
