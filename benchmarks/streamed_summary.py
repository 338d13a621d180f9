"""Print the table of docs/streamed.md on savings, from benchmarks/results/streamed.json.

python benchmarks/streamed_summary.py
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "streamed.json"
NAMES = {
    "full": "all data",
    "keyed": "`auto`, chosen before decoding",
    "after_decoding": "`auto`, chosen after decoding",
}
STAGES = ("reading", "decoding", "training")


def summary() -> str:
    arms = json.loads(RESULTS.read_text())["summary"]
    lines = [
        "| | passes saved | reading | decoding | training | choosing | in all | test accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total = sum(arms["full"][stage] for stage in (*STAGES, "pruning"))
    for arm, row in arms.items():
        stages = [f"{row[stage] / total:.2f}" for stage in STAGES]
        choosing = (row.get("choosing", 0.0) + row["pruning"]) / total
        span = (
            "1"
            if arm == "full"
            else f"{row['ratio']:.2f} ({row['lowest']:.2f}–{row['highest']:.2f})"
        )
        cells = [f"{row['passes_saved']:.0%}", *stages, f"{choosing:.3f}", span]
        lines.append(f"| {NAMES[arm]} | {' | '.join(cells)} | {row['accuracy']:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
