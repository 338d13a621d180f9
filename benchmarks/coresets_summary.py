"""Print the tables of docs/coresets.md from benchmarks/results/coresets.json."""

from __future__ import annotations

import json
from pathlib import Path

from infobatch.coresets import METHODS

RESULTS = Path(__file__).parent / "results" / "coresets.json"


def cell(found: dict | None, processor: str) -> str:
    if found is None:
        return "–"
    mark = "" if found["processor"] == processor else " †"
    if found["cpu_seconds"] is None:
        return f"over {found['limit']:,.0f} s{mark}"
    seconds = found["cpu_seconds"]
    digits = 0 if seconds >= 10 else 1 if seconds >= 1 else 2
    return f"{seconds:,.{digits}f} s, {found['peak_mb']:,} MB{mark}"


def main() -> None:
    stored = json.loads(RESULTS.read_text())
    processor = stored["hardware"]["processor"]
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
    rows = sorted(
        {(entry["method"], entry["library"]) for entry in stored["cells"]},
        key=lambda row: (list(METHODS).index(row[0]), row[1] != "infobatch", row[1]),
    )
    heads = [
        f"{size:,}, {form.replace('_', ' ')}" for size in sizes for form in ("by_class", "whole")
    ]
    print("| method |", " | ".join(heads), "|")
    print("|---" * (len(heads) + 1) + "|")
    for method, library in rows:
        name = f"`{method}`" if library == "infobatch" else f"`{method}`, {library}"
        columns = [
            cell(cells.get((method, library, form, size)), processor)
            for size in sizes
            for form in ("by_class", "whole")
        ]
        print("|", name, "|", " | ".join(columns), "|")
    others = sorted({entry["processor"] for entry in stored["cells"]} - {processor})
    print(f"\nMeasured on: {processor}{''.join(f'; † {other}' for other in others)}.")


if __name__ == "__main__":
    main()
