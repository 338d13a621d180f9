"""Print the table of docs/streamed.md on costs, from benchmarks/results/keyed.json.

python benchmarks/keyed_summary.py
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "keyed.json"


def summary() -> str:
    stored = json.loads(RESULTS.read_text())
    figures = stored["keyed"]
    rows = {
        "a lookup in a worker, per sample": f"{figures['lookup_us']:.1f} µs",
        "an update, per sample (batches of 256)": f"{figures['update_us']:.1f} µs",
        "the end of the first epoch: the table built": f"{figures['first_table_s']:.1f} s",
        f"the end of a later epoch, with {figures['kept']:.0%} of them visited": f"{figures['next_table_s']:.1f} s",
        "shared with workers, per key": f"{figures['shared_bytes']:.1f} bytes",
        "scores and moving averages, per key": f"{figures['column_bytes']:.0f} bytes",
        "at the peak, at the end of the first epoch, per key": f"{figures['peak_bytes']:.0f} bytes",
    }
    lines = [f"| {stored['size']:,} keys, strings | processor time, one thread |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])


if __name__ == "__main__":
    print(summary())
