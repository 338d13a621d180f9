"""Shared by the tests: data whose samples know who they are, and a loop that trains on it."""

from importlib.util import find_spec

import pytest
import torch
from torch.utils.data import Dataset

# timm needs torchvision, whose presence would change what other packages here do: both live in a
# folder of their own, and `make test` runs timm's tests by themselves.
if find_spec("timm") is None:
    collect_ignore = ["integrations/test_timm.py"]
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
