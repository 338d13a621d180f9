"""The examples of the Lightning and torchdata pages run."""

import os
import re
import subprocess
import sys

import pytest

from document_examples import ROOT, examples, surroundings

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


def test_lightning_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = surroundings(tmp_path)
    trained, data_module, _, fabric = examples("docs/lightning.md")
    exec(compile(trained, "lightning.md", "exec"), namespace)
    assert namespace["train_data"].savings.epochs[-1].epoch == 2
    assert "Saved" in capsys.readouterr().out
    exec(compile(data_module, "lightning.md", "exec"), namespace)
    train_data = namespace["trainer"].datamodule.train_data
    assert len(train_data.savings.epochs) == 3
    assert train_data.savings.saved > 0
    namespace.update({key: surroundings(tmp_path)[key] for key in ("model", "optimizer")})
    namespace["optimizer"].param_groups[0]["params"] = list(namespace["model"].parameters())
    exec(compile(fabric, "lightning.md", "exec"), namespace)
    assert len(namespace["train_data"].savings.epochs) == 3
    namespace["fabric"].load(namespace["checkpoint"], namespace["state"])


SURROUNDINGS = """
import sys
from pathlib import Path
from document_examples import surroundings
globals().update(surroundings(Path.cwd()))
"""
QUIET = "--trainer.logger=false --trainer.enable_progress_bar=false --trainer.accelerator=cpu"


def test_lightning_page_s_command_line(tmp_path):
    """In a file of its own: the command line's parser reads the classes' sources."""
    pytest.importorskip("jsonargparse", reason="LightningCLI needs jsonargparse[signatures]")
    trained, data_module, command_line, _ = examples("docs/lightning.md")
    classes = [block[: block.index("\n\n\ntrainer = ")] for block in (trained, data_module)]
    script = tmp_path / "script.py"
    script.write_text(
        "\n".join([SURROUNDINGS, *classes, command_line, "print(cli.trainer.callbacks)"])
    )
    path = os.pathsep.join([str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, script, "fit", "--trainer.max_epochs=3", *QUIET.split()],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert re.search(r"Saved \d+\.\d% of 1,200 sample passes \(\d+ made in 3 epochs", run.stdout)
    assert "InfoBatchCallback" in run.stdout


def test_torchdata_page(tmp_path):
    namespace = surroundings(tmp_path)
    (block,) = examples("docs/torchdata.md")
    exec(compile(block, "torchdata.md", "exec"), namespace)
    savings = namespace["train_data"].savings
    assert [epoch.epoch for epoch in savings.epochs] == [0, 1, 2]
    assert savings.made + savings.saved == 1200
