# python benchmarks/spreads_summary.py
"""The table of docs/policies/noise.md, from what spreads.py has stored."""

from __future__ import annotations

import json
from pathlib import Path

RECORD = Path(__file__).parent / "results" / "spreads.json"


def main() -> None:
    record = json.loads(RECORD.read_text())
    print(
        "| recipe | spread of the losses | spread s of the gradients' sizes "
        "| 1 − 1 / ((1 + tau)(1 + s²)) | left out |"
    )
    print("|---|---|---|---|---|")
    for name, recipe in record["recipes"].items():
        loss, gradient = recipe["loss_spread"], recipe["gradient_spread"]
        expected = 1 - 1 / ((1 + record["tau"]) * (1 + gradient**2))
        cells = [f"`{name}`", f"{loss:.2f}", f"{gradient:.2f}", f"{expected:.0%}"]
        print(f"| {' | '.join(cells)} | {recipe['left_out']:.0%} |")


if __name__ == "__main__":
    main()
