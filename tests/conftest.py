"""Shared by the tests: data whose samples know who they are, and a loop that trains on it."""

from importlib.util import find_spec

import pytest
import torch
from torch.utils.data import Dataset

from infobatch.lab.results import read_result, run_folder, write_results
from infobatch.lab.run import run_once

collect_ignore = ["tiny_task.py"]  # the lab imports it as it does a user's file
# timm needs torchvision, whose presence would change what other packages here do: both live in a
# folder of their own, and `make test` runs timm's tests by themselves.
if find_spec("timm") is None:
    collect_ignore += ["integrations/test_timm.py"]
else:
    import torchvision_operators  # noqa: F401 - before anything imports torchvision


class Numbered(Dataset):
    """Sample i is the number i, so that a loss can be checked against the sample it belongs to."""

    classes = ("even", "odd")

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(float(index)), index % 2


def loss_of(sample, epoch):
    """A loss that tells the sample and the epoch apart, and whose ranking changes by epoch."""
    return (sample * 7919 + epoch * 104729) % 1009 / 1009 + sample * 1e-5


def run_epoch(train_data, loader, epoch):
    """Update with every batch; return the visited samples in order."""
    visited = []
    for x, _ in loader:
        train_data.update(loss_of(x, epoch))
        visited += x.long().tolist()
    return visited


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """The folder of a real comparison, as small as they come: three arms, two seeds."""
    out = tmp_path_factory.mktemp("comparison")
    arms, seeds, runs = ["full", "short", "infobatch"], [0, 1], []
    for seed in seeds:
        budget = None
        for arm in ("full", "infobatch", "short"):
            folder = run_folder(out, arm, seed)
            run_once(
                "fashion", folder, arm=arm, seed=seed, data=None, smoke=True, options={},
                budget=budget, learning_rate=None, validation=False, events=True,
            )  # fmt: skip
            runs.append(read_result(folder))
            budget = runs[-1]["costs"]["samples_forwarded"]
    settings = {
        "task": "fashion",
        "metric": "accuracy",
        "higher_is_better": True,
        "margin": 0.5,
        "arms": arms,
        "seeds": seeds,
        "smoke": True,
        "options": {},
        "command": "infobatch compare fashion --arms full,short,infobatch --seeds 2 --smoke",
        "versions": runs[0]["versions"],
    }
    write_results(out, settings, runs)
    return out
