"""The arm ``afss``: qualities of all samples, measured every fifth epoch, counted, and resumable."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infobatch.lab.run import training
from infobatch.lab.run.arms import Arm
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import TaskError, load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
QUIET = lambda standing: None  # noqa: E731
pytestmark = pytest.mark.filterwarnings("ignore::infobatch.BiasedPolicyWarning")
EPOCHS = 12  # measured in epochs 5 and 10


def afss_run(folder, **changes):
    """A task whose qualities are the samples' places, from 0 to 1, and a little better each time."""
    torch.manual_seed(0)
    task = load_task(str(TINY))

    def qualities(model, data):
        assert model is run.model
        return torch.linspace(0, 0.9, len(data)) + run.train_data.epoch / 100

    task = replace(task, epochs=EPOCHS, qualities=qualities, **changes)
    run = Run(task, settings_of(task, arm="afss", seed=0), folder)
    return run


def test_each_sample_has_its_own_quality_whether_it_was_left_out_or_not(tmp_path):
    run = afss_run(tmp_path)
    record = run.train(QUIET)
    expected = torch.linspace(0, 0.9, run.num_samples) + 0.10
    assert torch.equal(run.train_data.state_dict()["columns"]["quality"], expected)
    kept = [epoch.kept_fraction for epoch in record.history]
    assert kept[:6] == [1] * 6
    assert max(kept[6:]) < 0.9


def test_measuring_costs_a_third_of_a_pass_for_every_sample(tmp_path):
    run = afss_run(tmp_path)
    record = run.train(QUIET)
    visited = sum(epoch.samples for epoch in record.history)
    measured = round(2 * run.num_samples / 3)
    assert record.costs.samples_backpropagated == visited
    assert record.costs.samples_forwarded == visited + measured


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("epoch", [5, 7])
def test_a_run_that_was_stopped_within_an_epoch_continues(epoch, tmp_path, monkeypatch):
    straight = afss_run(tmp_path / "straight")
    expected = straight.train(QUIET)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step

    def stop(standing):
        if standing["epoch"] == epoch and not standing["epoch_ended"]:
            raise StoppedError

    with pytest.raises(StoppedError):
        afss_run(tmp_path / "stopped").train(stop)
    resumed = afss_run(tmp_path / "stopped")
    record = resumed.train(QUIET)
    assert record.metric == expected.metric
    assert record.costs.samples_forwarded == expected.costs.samples_forwarded
    columns = [run.train_data.state_dict()["columns"] for run in (straight, resumed)]
    assert torch.equal(columns[0]["quality"], columns[1]["quality"])
    assert torch.equal(columns[0]["last_visit"], columns[1]["last_visit"])


def test_a_task_without_qualities_raises(tmp_path):
    task = replace(load_task(str(TINY)), qualities=None)
    text = (
        f"{task.name} does not define qualities(), which the arm afss needs: qualities(model, data) -> how good "
        "the model is on each training sample, from 0 to 1."
    )
    with pytest.raises(TaskError, match=f"^{re.escape(text)}$"):
        Run(task, settings_of(task, arm="afss", seed=0), tmp_path)


def test_it_cannot_be_followed_by_a_run_on_all_data():
    assert not Arm("afss").can_be_followed
    assert Arm("auto").can_be_followed
