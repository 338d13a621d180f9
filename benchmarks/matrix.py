"""Run the tests of the core with the oldest and the newest torch and with every Python, for docs/versions.md.

python benchmarks/matrix.py
python benchmarks/matrix.py --only 3.12:newest
python benchmarks/matrix.py --only 3.12:newest --tests plan memory
python benchmarks/matrix.py --write-only

Each pair gets a fresh virtual environment, which is deleted afterwards. Interpreters are taken from the PATH,
from pyenv and from uv, wherever one is found. Rows are stored as they are finished; a pair that is stored for
this version is run again only by ``--only``. On Linux, PyPI's torch brings several gigabytes of CUDA packages:
without a GPU, set ``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
    ("3.11", "2.13.0"),  # what constraints.txt has
    ("3.12", NEWEST),
    ("3.13", NEWEST),
)
# What needs nothing but torch and NEEDED.
TESTS = ["plan", "step", "epoch", "memory", "policies", "distributed", "keyed", "forecast"]
TESTS += ["scoring", "coresets", "experimental"]
TESTS += [f"test_{name}.py" for name in ("reference", "pitfalls", "savings", "schedule", "errors")]
NEEDED = ["pytest", "hypothesis", "scipy", "pyarrow", "datasets"]
INSTALL_SECONDS = 1800
VERSIONS = (
    "import sys, torch, numpy; print(sys.version.split()[0], torch.__version__, numpy.__version__)"
)


class NotInstalledError(Exception):
    """A pair that cannot be tested on this machine, with the reason."""


def candidates(version: str) -> Iterator[str]:
    """Where an interpreter of this version may be."""
    yield sys.executable
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python")):
        yield str(path)
    if uv := shutil.which("uv"):
        answer = subprocess.run(
            [uv, "python", "find", version], capture_output=True, text=True, check=False
        )
        if not answer.returncode:
            yield answer.stdout.strip()


def interpreter(version: str) -> str:
    """The first candidate that starts and is of this version: a shim of pyenv may do neither."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates(version):
        answer = subprocess.run(
            [candidate, "-c", code], capture_output=True, text=True, check=False
        )
        if answer.stdout.strip() == version:
            return candidate
    raise NotInstalledError(f"no Python {version} was found")


def install(python: str, torch: str, folder: Path) -> str:
    """Make an environment with torch, this package and what its tests import; returns its Python."""
    fresh = str(folder / "venv" / "bin" / "python")
    requirement = "torch" if torch == NEWEST else f"torch=={torch}"
    for command in (
        [interpreter(python), "-m", "venv", str(folder / "venv")],
        [fresh, "-m", "pip", "install", "--quiet", "--no-compile", requirement, *NEEDED, str(ROOT)],
    ):
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise NotInstalledError(f"not installed after {INSTALL_SECONDS // 60} min") from None
        if run.returncode:
            errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR:")]
            raise NotInstalledError((errors or ["pip failed"])[-1].removeprefix("ERROR: "))
    return fresh


def try_pair(python: str, torch: str, parts: list[str]) -> dict[str, Any]:
    """Install and test one pair; the row says what was installed and how the tests ended."""
    row = {"python": python, "torch": torch, "infobatch": infobatch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        try:
            fresh = install(python, torch, Path(folder))
        except NotInstalledError as reason:
            return row | {"outcome": f"could not be installed here: {reason}"}
        versions = subprocess.run(
            [fresh, "-c", VERSIONS], capture_output=True, text=True, check=True
        )
        row |= dict(zip(("python", "torch", "numpy"), versions.stdout.split(), strict=True))
        tests = [str(ROOT / "tests" / name) for name in parts]
        # Not the sources beside the tests: what is tested is the package that was installed.
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        run = subprocess.run(
            [fresh, "-m", "pytest", "-q", "--override-ini", "testpaths=", *tests],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=variables | {"OMP_NUM_THREADS": "1"},
        )
    lines = run.stdout.strip().splitlines() or run.stderr.strip().splitlines()
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return row | {
        "outcome": re.sub(r" in .*", "", lines[-1].strip("= ")),
        "passed": not run.returncode,
        "failed": failed,
        "tests": parts,
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as the page shows them."""
    lines = ["| Python | torch | numpy | tests of the core |", "|---|---|---|---|"]
    for python, torch in PAIRS:
        row = rows.get(f"{python}:{torch}", {"python": python, "torch": torch})
        outcome = row.get("outcome", "not run")
        parts = row.get("tests", TESTS)
        left_out = [part for part in TESTS if part not in parts]
        if left_out:
            few = len(parts) < len(left_out)
            outcome += (
                f" (of {', '.join(parts)} only)" if few else f" (without {', '.join(left_out)})"
            )
        cells = (row["python"], row["torch"], row.get("numpy", "–"), outcome)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the pairs that are missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one pair, PYTHON:TORCH, also if it is stored")
    parser.add_argument(
        "--tests", nargs="+", default=TESTS, help="parts of tests/, where the time is short"
    )
    parser.add_argument("--write-only", action="store_true", help="run nothing, write the page")
    options = parser.parse_args()
    rows = json.loads(STORED.read_text()) if STORED.exists() else {}
    missing = [
        (python, torch)
        for python, torch in PAIRS
        if rows.get(f"{python}:{torch}", {}).get("infobatch") != infobatch.__version__
    ]
    pairs = [tuple(options.only.split(":"))] if options.only else missing
    for python, torch in () if options.write_only else pairs:
        name = f"{python}:{torch}"
        rows[name] = try_pair(python, torch, options.tests)
        print(name, rows[name]["outcome"], *rows[name].get("failed", ()), sep="\n  ", flush=True)
        STORED.write_text(json.dumps(rows, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(rows) + END + after)
    failed = [name for name, row in rows.items() if row.get("passed") is False]
    if failed:
        sys.exit(f"Stored as failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
