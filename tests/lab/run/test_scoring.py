"""``infobatch score``, and arms that start from its file with its cost counted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import infobatch
from infobatch.lab.cli import app
from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import as_task, import_file, load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
tiny_task = import_file(TINY)
WITH_PROXY = TINY.read_text() + "\n\ndef proxy():\n    return nn.Linear(4, 2, bias=False)\n"


def command(*arguments):
    return CliRunner(env={"OMP_NUM_THREADS": "1"}).invoke(app, [str(part) for part in arguments])


def scored(*arguments):
    run = command("score", *arguments)
    assert run.exit_code == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_a_checkpoint_scores_the_training_set(suffix, tmp_path):
    torch.manual_seed(3)
    model, (train, _) = tiny_task.model(), tiny_task.data()
    expected = tiny_task.losses(model, train[:60]).detach()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    out = tmp_path / "new" / f"scores.{suffix}"
    output = scored(TINY, "--checkpoint", tmp_path / "weights.pt", "--out", out)
    assert "Scored 60 samples, which costs 20 training steps of one sample." in output
    pruner = infobatch.Pruner(60, 4, initial_scores=out)
    assert torch.allclose(pruner.scores, expected, atol=1e-6)


def test_a_run_s_checkpoint_the_untrained_model_and_a_proxy(tmp_path):
    torch.save({"model": tiny_task.model().state_dict(), "epoch": 3}, tmp_path / "run.pt")
    scored(TINY, "--checkpoint", tmp_path / "run.pt", "--out", tmp_path / "run.npz")
    scored(TINY, "--out", tmp_path / "untrained.npz", "--seed", 5)
    scored(TINY, "--out", tmp_path / "again.npz", "--seed", 5)
    untrained, again = (np.load(tmp_path / f"{name}.npz") for name in ("untrained", "again"))
    assert (untrained["score"] == again["score"]).all()
    (tmp_path / "with_proxy.py").write_text(WITH_PROXY)
    output = scored(tmp_path / "with_proxy.py", "--proxy", "--out", tmp_path / "proxy.npz")
    assert "which costs 16 training steps" in output  # it has 8 parameters where the model has 10
    assert np.load(tmp_path / "proxy.npz")["cost"].sum() == pytest.approx(60 / 3 * 0.8)


def result_of(arm, folder, **more):
    task = as_task("tiny_task", tiny_task)
    run = Run(task, settings_of(task, arm=arm, seed=0, **more), folder)
    return run.train(lambda standing: None), run


def test_an_arm_starts_from_the_scores_and_pays_for_them(tmp_path):
    scored(TINY, "--out", tmp_path / "scores.npz")
    arm = f"mean:scores={tmp_path / 'scores.npz'}:delta=1"
    result, run = result_of(arm, tmp_path / "run")
    planned = [epoch.samples for epoch in result.history]
    assert planned[0] < 60
    assert result.costs.samples_backpropagated == sum(planned)
    assert result.costs.samples_forwarded == sum(planned) + 20
    assert result.saved_fraction == pytest.approx(1 - (sum(planned) + 20) / 240)
    # Scores that a training left behind are free.
    run.train_data.export_scores(tmp_path / "free.csv")
    free, _ = result_of(f"mean:scores={tmp_path / 'free.csv'}:delta=1", tmp_path / "free")
    assert free.costs.samples_forwarded == free.costs.samples_backpropagated
    assert free.history[0].samples < 60


def test_a_recipe_is_scored_and_pays_for_it(tmp_path):
    path = tmp_path / "scores.npz"
    output = scored("fashion", "--smoke", "--set", "optimizer=adamw", "--out", path)
    assert "Scored 256 samples, which costs 85 training steps of one sample." in output
    task = load_task("fashion", smoke=True, options={"optimizer": "adamw"})
    settings = settings_of(task, arm=f"mean:scores={path}:delta=1", seed=0, smoke=True)
    result = Run(task, settings, tmp_path / "run").train(lambda standing: None)
    planned = [epoch.samples for epoch in result.history]
    assert len(planned) == 3
    assert max(planned) < 256
    assert result.costs.samples_forwarded == sum(planned) + 85


def test_on_a_validation_split_each_sample_keeps_its_own_score(tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, index=np.arange(60), score=np.arange(60.0))
    _, run = result_of(f"mean:scores={path}", tmp_path / "run", validation=True)
    rows = np.asarray(run.train_set.indices)
    assert len(rows) == 48
    assert (run._initial_scores() == rows).all()


def test_other_scores_are_another_arm(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("index,score\n0,1\n")
    before = Arm(f"mean:scores={path}").hash
    path.write_text("index,score\n0,2\n")
    assert before != Arm(f"mean:scores={path}").hash
    assert Arm("mean").hash is None


def test_a_file_that_cannot_be_written_raises_before_anything_is_scored(tmp_path, monkeypatch):
    monkeypatch.setattr("infobatch.lab.commands.score_task", None)
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "scores.npz"
    run = command("score", TINY, "--out", out)
    assert run.exit_code == 2
    message = f"--out got {out}, which cannot be written (File exists). Choose another folder."
    assert message in run.stderr
    run = command("score", TINY, "--out", tmp_path / "scores.txt")
    assert run.exit_code == 2
    message = f"--out got {tmp_path / 'scores.txt'}, expected a file name that ends in .npz, .csv, .parquet."
    assert message in run.stderr


def test_what_raises(tmp_path):
    for arguments, message in [
        (("score", TINY, "--proxy"), "--proxy got the task tiny_task, which defines none"),
        (("score", TINY, "--checkpoint", tmp_path / "no.pt"), "which does not exist"),
        (("score", "nonsense"), "There is no recipe 'nonsense'"),
    ]:
        run = command(*arguments)
        assert run.exit_code == 2
        assert message in run.stderr
    torch.save({"layer": torch.ones(2)}, tmp_path / "other.pt")
    run = command("score", TINY, "--checkpoint", tmp_path / "other.pt")
    assert "which does not fit the model" in run.stderr
    torch.save(tiny_task.model(), tmp_path / "pickled.pt")
    run = command("score", TINY, "--checkpoint", tmp_path / "pickled.pt")
    assert run.exit_code == 2
    assert "which does not fit the model" in run.stderr
    with pytest.raises(ValueError, match=r"but there is no file missing.npz. Expected scores that"):
        parse_arms("full,mean:scores=missing.npz")
