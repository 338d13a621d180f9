"""Single runs of the lab: stopped at the worst moment, diverged, asked for twice, on other systems."""

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from torch.utils.data import Dataset
from typer.testing import CliRunner

from infobatch.lab.run import machine, training
from infobatch.lab.run.process import main
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import TaskError, load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
run_app = typer.Typer()
run_app.command()(main)


def train_once(*arguments):
    return CliRunner().invoke(run_app, [str(part) for part in arguments])


class StopError(Exception):
    pass


def short_run(task, folder):
    return Run(task, settings_of(task, arm="short", seed=0, budget=100, leader="infobatch"), folder)


@pytest.mark.parametrize("schedule", [None, torch.optim.lr_scheduler.StepLR])
def test_a_short_run_killed_after_its_last_step_ends_as_it_would_have(tmp_path, schedule):
    task = load_task(str(TINY))
    if schedule is not None:
        task = replace(task, schedule=schedule)
    straight = short_run(task, tmp_path / "straight")
    expected = straight.train(lambda standing: None)
    assert expected.costs.optimizer_steps == 13, "five steps into the second epoch of eight"

    def stop_at_the_end(standing):
        if standing["done"] == 1:
            raise StopError

    with pytest.raises(StopError):
        short_run(task, tmp_path / "killed").train(stop_at_the_end)
    resumed = short_run(task, tmp_path / "killed")
    result = resumed.train(lambda standing: None)
    assert result.costs.optimizer_steps == 13
    assert [epoch.epoch for epoch in result.history] == [0, 1]
    assert result.metric == expected.metric
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_what_a_rule_hides_is_forwarded_and_three_forwards_count_as_a_pass(tmp_path):
    """Stopped after an epoch and resumed, the run ends as it would have."""
    task = replace(load_task(str(TINY)), epochs=6)
    settings = settings_of(task, arm="kakurenbo:save=0.3", seed=0)
    straight = Run(task, settings, tmp_path / "straight")
    expected = straight.train(lambda standing: None)
    savings = straight.train_data.savings
    assert savings.refreshed > 0
    assert savings.epochs[-1].refreshed == 0, "after the last epoch nobody needs them"
    thirds = sum(round(epoch.refreshed / 3) for epoch in savings.epochs)
    assert expected.costs.samples_forwarded == savings.made + thirds
    assert expected.costs.samples_backpropagated == savings.made
    # The budget counts a refresh after every epoch, and the one after the last is not needed.
    unspent = savings.epochs[-1].saved / 3 / expected.full_passes
    assert expected.saved_fraction - unspent == pytest.approx(0.3, abs=0.01)
    assert torch.isfinite(straight.train_data.scores).all()

    def stop(standing):
        if standing["epoch_ended"] and standing["epoch"] == 3:
            raise StopError

    with pytest.raises(StopError):
        Run(task, settings, tmp_path / "killed").train(stop)
    resumed = Run(task, settings, tmp_path / "killed")
    assert resumed.train(lambda standing: None).metric == expected.metric
    assert resumed.train_data.savings == savings


@pytest.mark.filterwarnings("ignore:None of the .* samples of epoch .* got a score:UserWarning")
def test_a_diverged_run_ends_and_counts_as_diverged(tmp_path):
    run = train_once(
        "diffusion", "--smoke", "--learning-rate", 1e30, "--out", tmp_path / "infobatch"
    )
    assert run.exit_code == 0, run.output
    assert "not finite" in run.output
    result = json.loads((tmp_path / "infobatch" / "result.json").read_text())
    assert result["metric"] is None
    assert result["extra_metrics"] == {}


def test_an_extra_metric_that_is_not_finite_is_none(tmp_path):
    metrics = {"good": 1.0, "bad": float("nan"), "worse": float("inf")}
    task = replace(load_task(str(TINY)), extra_metrics=lambda model, data: metrics)
    result = Run(task, settings_of(task, arm="full", seed=0), tmp_path).train(lambda standing: None)
    assert result.extra_metrics == {"good": 1.0, "bad": None, "worse": None}


class Noisy(Dataset):
    """Samples that a loader's worker augments."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.rand(4)


def noisy_run(folder, seen):
    def losses(model, batch):
        seen.append(batch)
        return model(batch).square().mean(1)

    task = replace(
        load_task(str(TINY)),
        data=lambda: (Noisy(), Noisy()),
        losses=losses,
        evaluate=lambda model, data: 0.0,
        num_workers=1,
        epochs=3,
    )
    return Run(task, settings_of(task, arm="full", seed=0), folder)


@pytest.mark.parametrize("stop_after", [4, 6])
def test_workers_of_a_resumed_run_do_not_repeat_themselves(tmp_path, monkeypatch, stop_after):
    straight, expected = noisy_run(tmp_path / "straight", seen := []), seen
    straight.train(lambda standing: None)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    visited = []

    def stop(standing):
        if len(visited) == stop_after:
            raise StopError

    with pytest.raises(StopError):
        noisy_run(tmp_path / "stopped", visited).train(stop)
    noisy_run(tmp_path / "stopped", visited).train(lambda standing: None)
    assert len(visited) == len(expected) == 12, "three epochs of four batches"
    assert len(torch.stack(visited).unique(dim=0)) == 12, "no augmentation came twice"
    same = [torch.equal(batch, other) for batch, other in zip(visited, expected, strict=True)]
    # Within an epoch the rest of it has draws of its own; from an epoch's end all are as they were.
    drawn_again = range(6, 8) if stop_after == 6 else range(0)
    assert same == [step not in drawn_again for step in range(12)]


def test_a_folder_that_holds_a_finished_run(tmp_path):
    assert "Wrote" in train_once(TINY, "--arm", "infobatch", "--out", tmp_path).output
    written = (tmp_path / "result.json").stat().st_mtime_ns
    again = train_once(TINY, "--arm", "infobatch", "--out", tmp_path)
    assert again.exit_code == 0
    assert "accuracy" in again.output
    assert "Already finished: " in again.output
    for arguments, message in (
        (("--arm", "full"), "arm = 'infobatch' there, 'full' here"),
        (("--seed", "1"), "seed = 0 there, 1 here"),
        (("--learning-rate", "0.5"), "learning_rate = 0.01 there, 0.5 here"),
    ):
        failed = train_once(TINY, "--arm", "infobatch", *arguments, "--out", tmp_path)
        assert failed.exit_code == 2
        assert message in failed.stderr
        assert "Choose another --out, or delete the folder." in failed.stderr
    assert (tmp_path / "result.json").stat().st_mtime_ns == written


def stopped_run(folder, **more):
    """Leave a checkpoint; return the run that would continue from it."""
    task = load_task(str(TINY))

    def stop(standing):
        raise StopError

    with pytest.raises(StopError):
        Run(task, settings_of(task, arm="full", seed=0), folder).train(stop)
    return Run(task, settings_of(task, arm="full", seed=0, **more), folder)


def test_a_checkpoint_of_other_settings_says_which(tmp_path):
    run = stopped_run(tmp_path, epochs=9)
    with pytest.raises(TaskError, match=r"different settings: epochs = 4 there, 9 here.*or delete"):
        run.train(lambda standing: None)


def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path):
    run = stopped_run(tmp_path)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TaskError, match=r"checkpoint\.pt is damaged.*Delete it"):
        run.train(lambda standing: None)


def test_an_arm_that_matches_another_needs_a_budget(tmp_path):
    run = train_once(TINY, "--arm", "short", "--out", tmp_path)
    assert run.exit_code == 2
    message = " ".join(run.stderr.split())
    assert (
        "--arm short matches the cost of another run. Expected --budget SAMPLE_PASSES." in message
    )


def test_an_epoch_is_logged_once(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a report after every step
    run = train_once(TINY, "--log", "tensorboard", "--out", tmp_path)
    assert run.exit_code == 0, run.output
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [0, 1, 2, 3]


def test_a_resumed_wandb_run_is_the_same_one(tmp_path):
    code = (
        "import sys, pathlib; from infobatch.lab.run.writers import WandbWriter\n"
        "for folder in sys.argv[1:]:\n"
        "    writer = WandbWriter(pathlib.Path(folder), 'a')\n"
        "    writer.log({'x': 1.0}, 0)\n"
        "    print('id', writer._run.id)\n"
        "    writer.close()\n"
    )
    folders = [tmp_path / "one", tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, folders)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "WANDB_MODE": "offline"},
    )
    first, again, other = [line for line in run.stdout.splitlines() if line.startswith("id ")]
    assert first == again != other


def test_a_run_where_the_system_does_not_tell_its_memory(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert train_once(TINY, "--out", tmp_path).exit_code == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["costs"]["peak_memory_mb"] is None


def test_on_a_gpu_time_waits_for_it_and_memory_is_its_own(tmp_path, monkeypatch):
    # There may be none here: only what torch is asked can be checked.
    task = load_task(str(TINY))
    run = Run(task, settings_of(task, arm="full", seed=0), tmp_path)
    run.device, waited = torch.device("cuda", 0), []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 << 20)
    assert run._clock() > 0
    assert waited == [run.device]
    assert machine.peak_memory_mb(run.device) == 3


# How long a run is.


class Numbers(Dataset):
    """So many samples."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def run_of(folder, count, batch, **settings):
    task = replace(
        load_task(str(TINY)),
        data=lambda: (Numbers(count), Numbers(4)),
        model=lambda: torch.nn.Linear(1, 1),
        losses=lambda model, batch: model(batch / 1e4).square().mean(1),
        evaluate=lambda model, data: 0.0,
        batch_size=batch,
        epochs=5,
    )
    return Run(task, settings_of(task, seed=0, **settings), folder)


@pytest.mark.parametrize(("count", "batch"), [(260, 256), (1500, 64), (5000, 4096), (60, 8)])
def test_short_costs_what_its_leader_did_up_to_a_batch(tmp_path, count, batch):
    quiet = lambda standing: None  # noqa: E731
    leader = run_of(tmp_path / "mean", count, batch, arm="mean").train(quiet)
    budget = leader.costs.samples_forwarded
    assert leader.saved_fraction > 0.15, "there is something to match"
    matched = {"budget": budget, "leader": "mean"}
    short = run_of(tmp_path / "short", count, batch, arm="short", **matched).train(quiet)
    assert abs(short.costs.samples_forwarded - budget) <= batch
    random = run_of(tmp_path / "random", count, batch, arm="random", **matched).train(quiet)
    assert abs(random.costs.samples_forwarded - budget) <= 5, "a rounding per epoch"


@pytest.mark.parametrize("length", [0.2, 0.3, 0.5, 0.72, 1.0])
@pytest.mark.parametrize("arm", ["full", "mean", "random:ratio=0.5"])
def test_a_shorter_run_has_its_whole_schedule(tmp_path, arm, length):
    run = run_of(tmp_path, 260, 32, arm=arm, length=length)
    whole = run.train(lambda standing: None)
    epochs, rest = divmod(length * 5, 1)
    assert run.total_steps == 9 * epochs + round(rest * 260 / 32), "nine steps per epoch"
    assert run.ended
    assert run.schedule.get_last_lr()[0] < 0.2 * run.settings.learning_rate
    if length == 1.0:
        assert run.steps.visits.sum() == whole.costs.samples_forwarded, (
            "the plans were those trained on"
        )
    if arm == "full":
        assert whole.costs.optimizer_steps == run.total_steps
        assert abs(whole.costs.samples_forwarded - length * 5 * 260) <= 16
    elif length > 0.2:
        assert whole.costs.samples_forwarded < length * 5 * 260


def test_a_run_that_ends_within_an_epoch_resumes_there(tmp_path, monkeypatch):
    settings = {"arm": "mean", "length": 0.72}
    straight = run_of(tmp_path / "straight", 260, 32, **settings)
    expected = straight.train(lambda standing: None)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    reports = 0

    def stop(standing):
        nonlocal reports
        reports += 1
        if reports == 20:
            raise StopError

    with pytest.raises(StopError):
        run_of(tmp_path / "stopped", 260, 32, **settings).train(stop)
    resumed = run_of(tmp_path / "stopped", 260, 32, **settings)
    result = resumed.train(lambda standing: None)
    assert result.costs.samples_forwarded == expected.costs.samples_forwarded
    assert [epoch.samples for epoch in result.history] == [
        epoch.samples for epoch in expected.history
    ]
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


def test_a_length_that_is_no_share_raises(tmp_path):
    failed = train_once(TINY, "--arm", "full", "--length", "0", "--out", tmp_path)
    assert failed.exit_code == 2
    assert (
        "--length got 0.0, expected a number above 0: 0.5 trains for half the epochs."
        in failed.stderr
    )


def test_a_run_says_where_and_when_it_was_made(tmp_path):
    assert train_once(TINY, "--arm", "full", "--out", tmp_path).exit_code == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["hardware"]["cores"] >= 1
    assert result["hardware"]["threads"] == torch.get_num_threads()
    assert result["hardware"]["processor"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", result["finished_at"])
    assert result["num_test"] == 20
    assert result["costs"]["evaluation_seconds"] > 0


def test_processor_time_is_that_of_training_and_continues_after_a_stop(tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(training, "cpu_seconds", lambda: float(next(ticks)))
    task = load_task(str(TINY))
    settings = settings_of(task, arm="infobatch", seed=0)

    def stop_after_two(standing):
        if standing["epoch"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        Run(task, settings, tmp_path).train(stop_after_two)
    result = Run(task, settings, tmp_path).train(lambda standing: None)
    assert result.costs.cpu_seconds == 8, "the plan and the batches of each of four epochs"


def test_processor_time_includes_workers_that_have_ended():
    before = machine.cpu_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert machine.cpu_seconds() > before


def test_the_history_has_six_significant_digits(tmp_path):
    assert train_once(TINY, "--arm", "infobatch", "--out", tmp_path).exit_code == 0
    for epoch in json.loads((tmp_path / "result.json").read_text())["history"]:
        for name in ("train_loss", "kept_fraction", "learning_rate", "seconds"):
            assert epoch[name] == float(f"{epoch[name]:.6g}")
