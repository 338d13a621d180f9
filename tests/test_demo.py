"""The demo, for real but short: two epochs, the table's figures, the picture and the file."""

import json
import sys

import pytest
from PIL import Image

from infobatch.lab import demo, fashion


def test_embedded_data():
    train_x, train_y, test_x, test_y = fashion.load()
    assert train_x.shape == (12_000, 1, 28, 28)
    assert test_x.shape == (2_000, 1, 28, 28)
    assert train_y.bincount().tolist() == [1_200] * 10
    assert test_y.bincount().tolist() == [200] * 10
    assert train_x.mean().item() == pytest.approx(0, abs=1e-4)


def test_short_demo(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["demo", "--epochs", "2", "--seed", "1", "--out", str(out)])
    demo.main()
    results = json.loads((out / "results.json").read_text())
    assert results["command"].endswith(f"--epochs 2 --seed 1 --out {out}")
    full, mean, quantile, short = results["runs"]
    assert full["sample_passes"] == 24_000
    assert mean["sample_passes"] < 24_000
    assert quantile["sample_passes"] == 12_000 + 12_000 * 0.525
    assert short["epochs"] == 2
    assert all(run["accuracy"] > 60 for run in results["runs"])
    assert mean["overhead_ms_per_epoch"] > 0
    with Image.open(out / "pruning.png") as picture:
        assert picture.width > 1000
    printed = capsys.readouterr().out
    assert "InfoBatch" in printed
    assert "quantile rule" in printed
    assert not list(out.glob("*.tmp*")), "files are written under another name, then renamed"
