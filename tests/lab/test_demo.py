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
    arms = ["full", "random", "infobatch", "quantile", "noise:tau=0.2:delta=1.0"]
    cells = {(run["arm"], run["length"]) for run in results["runs"]}
    assert cells == {(arm, length) for arm in arms for length in (0.4, 0.6, 0.8, 1.0)}
    assert len(results["tried_rates"]) == 15
    assert results["decision"]["sentence"] in run.stdout
    assert run.stdout.count("ot decided") == 1, "one seed is told of once"
    assert "quantile" in run.stdout
    assert "says nothing about quality" in run.stdout
    assert "report.html" in run.stdout.splitlines()[-1]
    assert (out / "report.html").exists()
