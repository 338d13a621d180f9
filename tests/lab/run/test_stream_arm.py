"""The arm ``stream``: each batch is scored, and trained on in part; unbiased, counted in full, resumable."""

from collections import namedtuple
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from infobatch import StreamPruner
from infobatch.lab.report.page import write_report
from infobatch.lab.run import training
from infobatch.lab.run.arms import Arm, leader_of, parse_arms
from infobatch.lab.run.data import part_of
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import TaskError, load_task
from infobatch.policies import NoPrune
from lab_runs import compare

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
QUIET = lambda standing: None  # noqa: E731


def stream_run(folder, arm="stream:keep=0.5", task=None, **more):
    task = task or load_task(str(TINY))
    return Run(task, settings_of(task, arm=arm, seed=0, **more), folder)


# The arm.


def test_names():
    arm = Arm("stream:keep=0.3:max_noise=0.1:floor=0.02:window=64")
    assert arm.stream == {"keep": 0.3, "max_noise": 0.1, "floor": 0.02, "window": 64}
    assert (arm.rule, arm.prunes, arm.follows, arm.shrink) == ("stream", True, False, "epoch")
    assert arm.limits == {}, "its noise is limited within the batch"
    assert arm.policy(num_samples=9, passes=9, epochs=1, budget=None) == NoPrune()
    assert Arm("stream").stream == {}
    assert Arm("mean").stream is None
    assert leader_of(parse_arms("full,stream:keep=0.5,short")) == Arm("stream:keep=0.5")


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        (
            "stream:delta=0.5",
            "stream has no option 'delta'. Expected some of keep, max_noise, floor",
        ),
        ("stream:save=0.3", "stream has no option 'save'"),
        ("stream:shrink=batch", "stream has no option 'shrink'"),
        ("stream:scores=scores.npz", "stream has no option 'scores'"),
        ("stream:keep=1.5", "'stream:keep=1.5': StreamPruner(keep=…) got 1.5, expected the share"),
        ("stream:keep=0.04", "expected a floor below keep"),
        ("stream:max_noise=0", "StreamPruner(max_noise=…) got 0, expected a number above 0"),
        ("stream:window=0", "window"),
    ],
)
def test_options_that_raise(arm, words):
    with pytest.raises(ValueError, match="--arms got 'stream:") as error:
        parse_arms(f"full,{arm}")
    assert words in str(error.value)


# The training.


class Noted(torch.optim.SGD):
    """Leaves the model as it is, and keeps the gradients."""

    def __init__(self, parameters, learning_rate):
        super().__init__(parameters, learning_rate)
        self.seen = []

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        self.seen.append(torch.cat([p.grad.flatten() for p in parameters]).clone())


def test_the_expected_gradient_is_that_of_all_data(tmp_path):
    """A z-test in each coordinate; without the weights it would fail."""
    task = replace(
        load_task(str(TINY)),
        epochs=300,
        evaluate_every=300,
        optimizer=lambda model, rate: Noted(model.parameters(), rate),
    )
    run = stream_run(tmp_path, "stream:keep=0.3:window=60", task)
    result = run.train(QUIET)
    assert result.saved_fraction == pytest.approx(1 - 1 / 3 - 0.3, abs=0.01)
    by_epoch = torch.stack(run.optimizer.seen).view(300, 8, -1).mean(1)[1:]
    everything = run.train_set[:]
    task.losses(run.model, everything).mean().backward()
    full = torch.cat([p.grad.flatten() for p in run.model.parameters()])
    error = by_epoch.std(0) / len(by_epoch) ** 0.5
    assert ((by_epoch.mean(0) - full) / error).abs().max() < 4
    assert (full / error).abs().max() > 20, "there is something to be wrong about"
    trained_most = run.steps.visits.argmax()
    assert run.train_data.scores.argsort()[-20:].eq(trained_most).any(), "the hard ones"


@pytest.mark.parametrize("length", [0.4, 0.72, 1.0])
@pytest.mark.parametrize("keep", [0.3, 0.8])
def test_costs_have_the_scoring_in_them(tmp_path, keep, length):
    whole = stream_run(tmp_path / "full", "full", length=length).train(QUIET)
    run = stream_run(tmp_path / "stream", f"stream:keep={keep}", length=length)
    result = run.train(QUIET)
    costs = result.costs
    scored, trained = whole.costs.samples_forwarded, costs.samples_backpropagated
    assert costs.samples_forwarded == round(scored / 3) + trained
    assert costs.optimizer_steps == whole.costs.optimizer_steps
    assert trained == pytest.approx(keep * scored, abs=0.15 * scored)
    assert result.saved_fraction == 1 - costs.samples_forwarded / 240
    assert run.steps.visits.sum() == trained
    assert sum(epoch.samples for epoch in result.history) == trained
    last = result.history[-1]
    assert last.samples_saved == scored - costs.samples_forwarded
    assert (last.samples_saved < 0) is (keep > 2 / 3)
    assert all(0.1 < epoch.kept_fraction <= 1 for epoch in result.history)
    assert costs.overhead_seconds > 0
    assert run.ended
    assert torch.isfinite(run.train_data.scores).all(), "every sample is scored in every epoch"


def with_dropout():
    network = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    return replace(load_task(str(TINY)), model=lambda: network.apply(fresh))


def fresh(module):
    if isinstance(module, nn.Linear):
        module.reset_parameters()


class StopError(Exception):
    pass


@pytest.mark.parametrize("length", [0.72, 1.0])
@pytest.mark.parametrize("stop_after", [3, 9, 20])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, monkeypatch, stop_after, length):
    arm = "stream:keep=0.4:max_noise=2:window=32"
    straight = stream_run(tmp_path / "straight", arm, with_dropout(), length=length)
    expected = straight.train(QUIET)
    weights = {name: value.clone() for name, value in straight.model.state_dict().items()}
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    reports = 0

    def stop(standing):
        nonlocal reports
        reports += 1
        if reports == stop_after:
            raise StopError

    with pytest.raises(StopError):
        stream_run(tmp_path / "killed", arm, with_dropout(), length=length).train(stop)
    torch.manual_seed(12345)  # whatever happens in between
    resumed = stream_run(tmp_path / "killed", arm, with_dropout(), length=length)
    result = resumed.train(QUIET)
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert np.array_equal(resumed.steps.visits, straight.steps.visits)
    assert torch.equal(resumed.train_data.scores, straight.train_data.scores)
    measured = attrgetter("samples_forwarded", "samples_backpropagated", "optimizer_steps")
    assert measured(result.costs) == measured(expected.costs)
    columns = attrgetter("train_loss", "kept_fraction", "samples", "samples_saved", "metric")
    assert list(map(columns, result.history)) == list(map(columns, expected.history))


def test_a_comparison_at_several_lengths(tmp_path):
    """On all data and on a weighted subset, with a report."""
    task = tmp_path / "classified_task.py"
    task.write_text(
        TINY.read_text() + "\n\ndef labels(data):\n    return [int(row[1]) for row in data]\n"
    )
    arms = "full,stream:keep=0.3,coreset:craig@0.5+stream:keep=0.5"
    results = compare(tmp_path / "out", arms, 1, task, lengths=(0.5, 1.0))
    runs = {(run["arm"], run["length"]): run for run in results["runs"]}
    assert len(runs) == 6
    for length in (0.5, 1.0):
        saved = runs["full", length]["costs"]["samples_forwarded"]
        saved -= runs["stream:keep=0.3", length]["costs"]["samples_forwarded"]
        assert saved > 0.2 * 240 * length
    assert runs["coreset:craig@0.5+stream:keep=0.5", 1.0]["metric"] is not None
    assert "stream:keep=0.3" in write_report(tmp_path / "out").read_text()


def test_short_costs_what_a_stream_did(tmp_path):
    results = compare(tmp_path, "full,short,stream:keep=0.3", 1, TINY, lengths=(1.0,))
    costs = {run["arm"]: run["costs"]["samples_forwarded"] for run in results["runs"]}
    assert abs(costs["short"] - costs["stream:keep=0.3"]) <= 8


# What raises an error.


def test_several_processes_raise(tmp_path):
    run = stream_run(tmp_path)
    run.world_size = 2  # as torchrun would
    with pytest.raises(TaskError) as error:
        run._steps()
    assert str(error.value) == (
        "The arm stream:keep=0.5 was started on 2 processes, expected one: each would train on "
        "a different number of samples. Start it without torchrun."
    )


def test_a_batch_without_a_row_per_sample_raises(tmp_path):
    def collate(samples):
        x, y = zip(*samples, strict=True)
        return torch.stack(x), torch.stack(y), torch.zeros(3, 4)

    tiny = load_task(str(TINY))
    task = replace(tiny, collate=collate, losses=lambda model, batch: tiny.losses(model, batch[:2]))
    with pytest.raises(TaskError) as error:
        stream_run(tmp_path, task=task).train(QUIET)
    size = 60 // 8  # even batches
    assert str(error.value) == (
        f"The arm stream takes a part of each batch. It got a tensor of shape (3, 4) in a batch of {size} "
        "samples, expected one row per sample. Collate such data into tensors with a row for each "
        "sample, or leave the arm out."
    )


Pair = namedtuple("Pair", "x name")


def test_a_part_of_a_batch_whatever_it_is_made_of():
    x = torch.arange(8.0).view(4, 2)
    batch = {
        "x": x,
        "pair": Pair(x[:, 0], ["a", "b", "c", "d"]),
        "list": [x, (0, 1, 2, 3)],
        "temperature": torch.tensor(2.0),
        "split": "train",
    }
    part = part_of(batch, torch.tensor([1, 3]), 4)
    assert part["x"].tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert isinstance(part["pair"], Pair)
    assert part["pair"].x.tolist() == [2.0, 6.0]
    assert part["pair"].name == ["b", "d"]
    assert part["list"][0].tolist() == part["x"].tolist()
    assert part["list"][1] == (1, 3)
    assert part["temperature"] == 2
    assert part["split"] == "train"


def test_the_draws_are_those_of_a_stream_pruner(tmp_path):
    """The first step, compared with the loop that the documentation shows."""
    run = stream_run(tmp_path)
    batch = next(iter(run.loader))
    step = run.steps.take(run.model, batch)
    scores = run.task.losses(run.model, batch).detach()
    kept = StreamPruner(keep=0.5, seed=0).select(scores)
    x, y = batch
    losses = run.task.losses(run.model, (x[kept.index], y[kept.index]))
    assert torch.equal(step.loss, kept.mean(losses))
    assert (step.size, step.backpropagated) == (len(x), len(kept))
