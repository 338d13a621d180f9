"""Arms that prune by measured gradients: ``auto:probe=LAYER``."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import TaskError, load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
QUIET = lambda standing: None  # noqa: E731


def probed_run(folder, arm="auto:probe=0"):
    torch.manual_seed(0)
    task = load_task(str(TINY))
    task = replace(task, model=lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    return Run(task, settings_of(task, arm=arm, seed=0, learning_rate=0.5), folder)


def test_names():
    assert Arm("auto:probe=vit.layers.1").probe == "vit.layers.1"
    assert Arm("auto").probe is None
    assert [arm.name for arm in parse_arms("full,auto:probe=3")] == ["full", "auto:probe=3"]


def test_it_prunes_by_what_the_backward_pass_shows(tmp_path):
    run = probed_run(tmp_path)
    record = run.train(QUIET)
    columns = run.train_data.state_dict()["columns"]
    assert columns["gradient"].isfinite().all()
    assert not torch.allclose(columns["gradient"], 1 - torch.exp(-columns["score"]), atol=0.01)
    assert record.saved_fraction > 0.05
    assert record.costs.samples_backpropagated == record.costs.samples_forwarded


class StoppedError(Exception):
    pass


def test_a_stopped_run_continues(tmp_path):
    straight = probed_run(tmp_path / "straight").train(QUIET)

    def stop(standing):
        if standing["epoch"] == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        probed_run(tmp_path / "stopped").train(stop)
    resumed = probed_run(tmp_path / "stopped").train(QUIET)
    assert resumed.metric == straight.metric
    kept = [[epoch.kept_fraction for epoch in record.history] for record in (resumed, straight)]
    assert kept[0] == kept[1]


def test_a_layer_that_is_not_there_raises(tmp_path):
    text = r"^The arm auto:probe=9 names a layer '9' that the model does not have\. Expected one of 0, 1, 2\."
    with pytest.raises(TaskError, match=text):
        probed_run(tmp_path, "auto:probe=9")
