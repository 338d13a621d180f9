"""The arm ``blocking``: samples are left out after a layer of the model; counted, resumable."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn

from infobatch import StreamPruner
from infobatch.lab.run import training
from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import TaskError, load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
QUIET = lambda standing: None  # noqa: E731


def run_of(folder, arm, **more):
    def network():
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 12), nn.Linear(12, 2))

    task = replace(load_task(str(TINY)), model=network)
    return Run(task, settings_of(task, arm=arm, seed=0, **more), folder)


def test_what_chooses():
    biased = Arm("blocking:layer=1:rarest=0.6").chooser(seed=0, ramp=50)
    assert (biased.keep, biased.ramp, biased.mean_over) == (0.6, 50, "kept"), "as published"
    biased = Arm("proxy:hardest=0.6").chooser(seed=0, ramp=50)
    assert (biased.keep, biased.ramp, biased.mean_over) == (0.6, 0, "batch"), "as published"
    unbiased = Arm("blocking:layer=1:keep=0.1:max_noise=0.2").chooser(seed=4, ramp=50)
    assert isinstance(unbiased, StreamPruner)
    assert (unbiased.max_noise, unbiased.seed) == (0.2, 4)


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("blocking:rarest=0.6", "without a layer, expected the name of the model's last layer"),
        ("blocking:layer=1:rarest=0.6:keep=0.5", "rarest=0.6 was combined with keep, expected it"),
        ("blocking:layer=1:hardest=0.6", "blocking has no option 'hardest'"),
    ],
)
def test_options_that_raise(arm, words):
    with pytest.raises(ValueError, match="--arms got '") as error:
        parse_arms(f"full,{arm}")
    assert words in str(error.value)


def test_a_layer_that_the_model_does_not_have(tmp_path):
    with pytest.raises(TaskError, match="names a layer '7' that the model does not have"):
        run_of(tmp_path, "blocking:layer=7:rarest=0.6")


def test_rarest(tmp_path):
    whole = run_of(tmp_path / "full", "full").train(QUIET)
    run = run_of(tmp_path / "blocking", "blocking:layer=1:rarest=0.4")
    result = run.train(QUIET)
    scored, trained = whole.costs.samples_forwarded, result.costs.samples_backpropagated
    share = 4 * 6 / (4 * 6 + 6 * 12 + 12 * 2)
    assert result.costs.samples_forwarded == round(share * (scored - trained)) + trained
    assert run.steps.visits.sum() == trained
    kept = [epoch.kept_fraction for epoch in result.history]
    assert kept[0] > kept[1] > kept[2] == kept[3], "more is left out over the first half"
    assert 0.4 <= kept[3] < 0.55, "rounded up in batches of seven and eight"
    assert result.metric > 50


def test_predicted_sizes(tmp_path):
    run = run_of(tmp_path, "blocking:layer=1:keep=0.5")
    result = run.train(QUIET)
    assert result.costs.samples_backpropagated == pytest.approx(0.5 * 240, abs=36)
    assert run.steps._chooser.scorer.state_dict()["products"].shape == (8, 8)
    assert 0 < result.saved_fraction < 0.5


class StopError(Exception):
    pass


@pytest.mark.parametrize("arm", ["blocking:layer=1:rarest=0.5", "blocking:layer=1:keep=0.4"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, monkeypatch, arm):
    straight = run_of(tmp_path / "straight", arm)
    expected = straight.train(QUIET)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    reports = 0

    def stop(standing):
        nonlocal reports
        reports += 1
        if reports == 13:
            raise StopError

    with pytest.raises(StopError):
        run_of(tmp_path / "killed", arm).train(stop)
    torch.manual_seed(12345)  # whatever happens in between
    resumed = run_of(tmp_path / "killed", arm)
    result = resumed.train(QUIET)
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, straight.model.state_dict()[name])
    measured = attrgetter("samples_forwarded", "samples_backpropagated", "optimizer_steps")
    assert measured(result.costs) == measured(expected.costs)
    columns = attrgetter("train_loss", "kept_fraction", "samples", "samples_saved", "metric")
    assert list(map(columns, result.history)) == list(map(columns, expected.history))
