# python benchmarks/operations_summary.py
"""The table of operations in docs/performance.md, from what operations.py has stored."""

from __future__ import annotations

import json
from pathlib import Path

RECORD = Path(__file__).parent / "results" / "operations.json"
PAPER = {  # Table 11, in milliseconds
    "1281167": {"sort": 123.4, "percentile": 13.0, "mean": 1.2},
    "14197122": {"sort": 1630.1, "percentile": 232.6, "mean": 6.4},
}


def main() -> None:
    milliseconds = json.loads(RECORD.read_text())["milliseconds"]
    names = list(next(iter(milliseconds.values())))
    print(f"| scores | {' | '.join(names)} |")
    print("|---" * (len(names) + 1) + "|")
    for size, measured in milliseconds.items():
        here = [f"{measured[name]:.1f} ms" for name in names]
        print(f"| {int(size):,} | {' | '.join(here)} |")
        there = [f"{PAPER[size][name]} ms" if name in PAPER[size] else "–" for name in names]
        print(f"| the paper, Table 11 | {' | '.join(there)} |")


if __name__ == "__main__":
    main()
