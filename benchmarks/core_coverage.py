"""Store what ``make coverage`` has measured: totals, and by file the lines that no test reaches.

make coverage && python benchmarks/core_coverage.py
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import coverage
import numpy as np
import torch

import infobatch

ROOT = Path(__file__).parents[1]
TOTALS = ("num_statements", "covered_lines", "num_branches", "covered_branches", "percent_covered")


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """The stored record, from the report of ``coverage json``."""
    versions = {
        "python": platform.python_version(),
        "coverage": coverage.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "infobatch": infobatch.__version__,
    }
    return {
        "command": "make coverage && python benchmarks/core_coverage.py",
        "versions": versions,
        "measured": report["meta"]["timestamp"],
        "totals": {name: report["totals"][name] for name in TOTALS},
        "lines_not_reached": {
            name: file["missing_lines"]
            for name, file in report["files"].items()
            if file["missing_lines"]
        },
        "branches_not_taken": {
            name: file["missing_branches"]
            for name, file in report["files"].items()
            if file["missing_branches"]
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, default=ROOT / "test-output/coverage.json")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/core_coverage.json")
    arguments = parser.parse_args()
    stored = summary(json.loads(arguments.report.read_text()))
    arguments.out.write_text(json.dumps(stored, indent=1) + "\n")
    print(stored["totals"])
