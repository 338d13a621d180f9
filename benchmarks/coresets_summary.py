"""Print the tables of docs/coresets.md from benchmarks/results/coresets.json."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "coresets.json"


def cell(found: dict | None) -> str:
    if found is None:
        return "–"
    if found["cpu_seconds"] is None:
        return f"over {found['limit']:,.0f} s"
    seconds = found["cpu_seconds"]
    digits = 0 if seconds >= 10 else 1 if seconds >= 1 else 2
    return f"{seconds:,.{digits}f} s, {found['peak_mb']:,} MB"


def main() -> None:
    stored = json.loads(RESULTS.read_text())
    cells = {
        (
            entry["method"],
            entry["library"],
            entry["form"],
            entry["size"],
        ): entry
        for entry in stored["cells"]
    }
    sizes = sorted({entry["size"] for entry in stored["cells"]})
    rows = dict.fromkeys((entry["method"], entry["library"]) for entry in stored["cells"])
    heads = [
        f"{size:,}, {form.replace('_', ' ')}" for size in sizes for form in ("by_class", "whole")
    ]
    print("| method |", " | ".join(heads), "|")
    print("|---" * (len(heads) + 1) + "|")
    for method, library in rows:
        name = f"`{method}`" if library == "infobatch" else f"`{method}`, {library}"
        columns = [
            cell(cells.get((method, library, form, size)))
            for size in sizes
            for form in ("by_class", "whole")
        ]
        print("|", name, "|", " | ".join(columns), "|")


if __name__ == "__main__":
    main()
