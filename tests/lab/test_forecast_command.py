"""``infobatch forecast``: one run of a task, or a file of scores."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import infobatch as library
from infobatch.lab.cli import app
from infobatch.lab.run.result import read_result

TINY = Path(__file__).parents[1] / "support" / "tiny_task.py"


def infobatch(*arguments, code=0):
    run = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["forecast", *map(str, arguments)])
    assert run.exit_code == code, run.output
    return run.stdout if not code else run.stderr


def test_a_task_is_trained_once_and_the_rules_are_followed(tmp_path):
    task = tmp_path / "long_task.py"
    task.write_text(TINY.read_text().replace("epochs = 4", "epochs = 8"))
    out = tmp_path / "out"
    output = infobatch(task, "--rules", "auto,mean:delta=1.0", "--out", out)
    lines = output.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("rule")) :]
    assert [line.split()[0] for line in table[1:3]] == ["auto", "mean:delta=1.0"]
    assert max(map(len, table)) <= 80
    record = read_result(out)
    assert (record.arm, record.saved_fraction) == ("full", 0)
    assert [len(epochs) for epochs in record.shadows.values()] == [8, 8]
    assert record.shadows["mean:delta=1.0"][-1].planned < 60
    again = infobatch(task, "--rules", "auto,mean:delta=1.0", "--out", out)
    assert "Already finished" in again
    assert again.splitlines()[-len(table) :] == table
    only_one = infobatch(task, "--rules", "auto", "--out", out)
    assert "mean" not in only_one
    other = infobatch(task, "--rules", "auto,quantile", "--out", out, code=2)
    assert (
        other.split()
        == (
            f"Error: --rules got quantile, but {out} holds a finished run that followed auto, "
            "mean:delta=1.0. Choose another --out, or delete it."
        ).split()
    )


def test_a_smoke_run_says_so(tmp_path):
    output = infobatch(TINY, "--smoke", "--out", tmp_path / "out")
    assert output.splitlines()[-1].startswith("A smoke run: it shows that everything works")


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_exported_scores_are_a_snapshot(tmp_path, ending):
    pruner = library.Pruner(1000, 4, policy="auto")
    losses = torch.linspace(0, 2, 1000) ** 3
    for _ in range(3):
        pruner.update(losses[list(pruner.sampler)])
    path = tmp_path / f"scores.{ending}"
    pruner.export_scores(path)
    output = infobatch(path, "--rules", "auto,mean,ucb")
    assert "A snapshot: what one epoch would save" in output
    rule, left_out, promised, realised, saving = output.splitlines()[1].split()
    assert (rule, promised) == ("auto", "0.20")
    assert float(realised) == pytest.approx(0.2, abs=0.02), "by the samples of one draw"
    kept = 1 - len(pruner.plan) / 1000
    assert float(left_out.rstrip("%")) == pytest.approx(100 * kept, abs=0.1)
    assert float(saving.rstrip("%")) == pytest.approx(100 * (1 - (1 - kept) * 1.2), abs=2)
    assert output.splitlines()[3].split()[-1] == "biased"


def test_a_snapshot_of_smoothed_losses_names_the_floor(tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, index=np.arange(1000), score=np.linspace(0.5, 1.5, 1000, dtype=np.float32))
    output = infobatch(path)
    assert " ".join(output.split()).count("found no loss below 0.50 before epoch 50") == 1
    assert max(map(len, output.splitlines())) <= 80


def test_a_budget_is_that_of_an_epoch_in_the_middle_of_a_run(tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, index=np.arange(1000), score=np.linspace(0, 2, 1000, dtype=np.float32) ** 3)
    output = infobatch(path, "--rules", "random:save=0.3:delta=1.0,random:save=0.3")
    left_out = [line.split()[1] for line in output.splitlines()[1:3]]
    assert left_out == ["30.3%", "34.5%"], "all but the first of 100 epochs prune, or of 87"


def test_mistakes(tmp_path):
    missing = infobatch(tmp_path / "scores.npz", code=2)
    assert "There is no file" in missing
    np.savez(tmp_path / "other.npz", index=np.arange(3))
    assert "has the columns ['index'], expected 'score'" in infobatch(
        tmp_path / "other.npz", code=2
    )
    message = infobatch(TINY, "--rules", "stream:keep=0.5", code=2)
    assert "--rules got 'stream:keep=0.5', which cannot be followed on all data" in message
    task_out = tmp_path / "out"
    infobatch(TINY, "--smoke", "--out", task_out)
    other = infobatch(TINY, "--smoke", "--seed", 1, "--out", task_out, code=2)
    assert "already holds a finished run with different settings" in other
