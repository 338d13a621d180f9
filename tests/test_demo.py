"""The embedded data, and the demo as `make demo` starts it, with a few samples."""

import json
import os
import subprocess
import sys

import pytest

from infobatch.lab import fashion


def test_embedded_data():
    train_x, train_y, test_x, test_y = fashion.load()
    assert train_x.shape == (12_000, 1, 28, 28)
    assert test_x.shape == (2_000, 1, 28, 28)
    assert train_y.bincount().tolist() == [1_200] * 10
    assert test_y.bincount().tolist() == [200] * 10
    assert train_x.mean().item() == pytest.approx(0, abs=1e-4)


def test_short_demo(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", "from infobatch.lab import main; main()", "demo", "--smoke"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
    )
    out = tmp_path / "demo-output-smoke"  # not in the way of the whole demo
    results = json.loads((out / "results.json").read_text())
    assert [run["arm"] for run in results["runs"]] == [
        "full",
        "infobatch",
        "quantile",
        "short",
        "random",
    ]
    assert "quantile" in run.stdout
    assert "not enough seeds to tell" in run.stdout
    assert "says nothing about quality" in run.stdout
    assert (out / "report.html").exists()
