"""The scripts of ``make bench`` run, on few samples; what they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "arguments", "measured"),
    [
        pytest.param(
            *("overhead.py", ("--sizes", "50000", "--repeats", "1"), "measurements"),
            marks=pytest.mark.slow,
        ),
        ("rules.py", ("--size", "20000", "--repeats", "1"), "rules"),
        ("keyed.py", ("--size", "20000"), "keyed"),
    ],
)
def test_a_benchmark_runs_and_stores_what_it_measured(script, arguments, measured, tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    results = json.loads(out.read_text())
    assert results["versions"]["torch"]
    assert results[measured]
