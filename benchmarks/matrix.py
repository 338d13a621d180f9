"""Run the tests of the core with the oldest and the newest torch and with every Python, for docs/versions.md.

python benchmarks/matrix.py
python benchmarks/matrix.py --only 3.11:2.13.0
python benchmarks/matrix.py --write-only

Each pair gets an environment of its own, made by uv, which also fetches the Python if it can. Rows are
stored as they are finished, and a pair that was stored for this version is not run again. Without a GPU
set UV_TORCH_BACKEND=cpu, or torch brings gigabytes of CUDA packages.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import infobatch

ROOT = Path(__file__).parent.parent
STORED = ROOT / "benchmarks" / "results" / "matrix.json"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- written by `python benchmarks/matrix.py` -->\n", "<!-- end -->\n"
NEWEST = "newest"
PAIRS = (
    ("3.10", "2.6.0"),
    ("3.13", "2.6.0"),
    ("3.10", NEWEST),
    ("3.11", NEWEST),
    ("3.12", NEWEST),
    ("3.13", NEWEST),
)
TESTS = ["plan", "epoch", "memory", "policies", "distributed"]
TESTS += [f"test_{name}.py" for name in ("reference", "pitfalls", "savings", "schedule", "errors")]
NEEDED = ["pytest", "pytest-xdist", "hypothesis", "scipy", "pyarrow", "datasets"]
VERSIONS = (
    "import sys, torch, numpy; print(sys.version.split()[0], torch.__version__, numpy.__version__)"
)


def try_pair(python: str, torch: str) -> dict[str, Any]:
    """Install and test one pair; the row says what was installed and what came of it."""
    row = {"python": python, "torch": torch, "infobatch": infobatch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        interpreter = str(Path(folder) / "venv" / "bin" / "python")
        requirement = "torch" if torch == NEWEST else f"torch=={torch}"
        for command in (
            ["uv", "venv", "--python", python, str(Path(folder) / "venv")],
            ["uv", "pip", "install", "--python", interpreter, requirement, *NEEDED, str(ROOT)],
        ):
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                return row | {"outcome": "could not be installed here", "why": run.stderr[-500:]}
        versions = subprocess.run(
            [interpreter, "-c", VERSIONS], capture_output=True, text=True, check=True
        )
        row |= dict(zip(("python", "torch", "numpy"), versions.stdout.split(), strict=True))
        tests = [str(ROOT / "tests" / name) for name in TESTS]
        run = subprocess.run(
            [interpreter, "-m", "pytest", "-q", "--override-ini", "testpaths=", *tests],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    outcome = run.stdout.strip().splitlines()[-1]
    return row | {
        "outcome": re.sub(r" in .*", "", outcome.strip("= ")),
        "passed": not run.returncode,
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as the page shows them."""
    lines = ["| Python | torch | numpy | tests of the core |", "|---|---|---|---|"]
    for row in rows.values():
        cells = (row["python"], row["torch"], row.get("numpy", "–"), row["outcome"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the pairs that are missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one pair, PYTHON:TORCH")
    parser.add_argument("--write-only", action="store_true", help="run nothing, write the page")
    options = parser.parse_args()
    rows = json.loads(STORED.read_text()) if STORED.exists() else {}
    pairs = [tuple(options.only.split(":"))] if options.only else PAIRS
    for python, torch in () if options.write_only else pairs:
        name = f"{python}:{torch}"
        if rows.get(name, {}).get("infobatch") != infobatch.__version__:
            rows[name] = try_pair(python, torch)
            print(name, rows[name]["outcome"], flush=True)
            STORED.write_text(json.dumps(rows, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(rows) + END + after)
    if any(row.get("passed") is False for row in rows.values()):
        sys.exit("Some tests failed.")


if __name__ == "__main__":
    main()
