"""The demo as `make demo` starts it, with a few samples."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_short_demo(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", "from infobatch.lab import main; main()", "demo", "--smoke"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
    )
    out = tmp_path / "demo-output-smoke"  # not in the way of the whole demo
    results = json.loads((out / "results.json").read_text())
    cells = {(run["arm"], run["length"], run["seed"]) for run in results["runs"]}
    assert cells == {
        (a, n, seed) for a in ("full", "auto") for n in (0.4, 0.6, 1.0) for seed in range(4)
    }
    assert results["decision"]["sentence"] in run.stdout
    assert [sorted(run["shadows"]) for run in results["runs"] if run["shadows"]] == [["auto"]]
    assert "No forecast of the saving at equal quality for 3 epochs" in run.stdout
    assert "says nothing about quality" in run.stdout
    assert "report.html" in run.stdout.splitlines()[-1]
    assert (out / "report.html").exists()
