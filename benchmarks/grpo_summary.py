# python benchmarks/grpo_summary.py [FILE]
"""A table of docs/grpo.md, from what grpo_sums.py has stored."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import numpy as np

RECORD = Path(__file__).parent / "results" / "grpo_sums.json"
NAMES = {
    "full": "all prompts",
    "short": "all prompts, fewer steps",
    "random": "random prompts",
    "infobatch": "InfoBatch",
}


def at(run, tokens):
    """The reward of a run when it had generated so many tokens."""
    points = run["curve"]
    return float(np.interp(tokens, [p["tokens"] for p in points], [p["reward"] for p in points]))


def main():
    record = json.loads(Path(sys.argv[1]).read_text() if sys.argv[1:] else RECORD.read_text())
    runs = {(run["arm"], run["seed"]): run for run in record["runs"]}
    seeds = sorted({seed for _, seed in runs})
    print(
        "| prompts | completion tokens | reward at the end | all prompts' reward at as many tokens |"
    )
    print("|---|---|---|---|")
    for arm, name in NAMES.items():
        rows = [runs[arm, seed] for seed in seeds if (arm, seed) in runs]
        if len(rows) < len(seeds):
            continue
        tokens = statistics.mean(row["completion_tokens"] for row in rows)
        reward = statistics.mean(row["reward"] for row in rows)
        spread = statistics.stdev(row["reward"] for row in rows)
        same = statistics.mean(at(runs["full", r["seed"]], r["completion_tokens"]) for r in rows)
        print(f"| {name} | {tokens:,.0f} | {reward:.3f} ± {spread:.3f} | {same:.3f} |")


if __name__ == "__main__":
    main()
