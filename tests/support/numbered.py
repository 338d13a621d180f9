"""Data whose samples know who they are, and a loop that trains on it."""

import torch
from torch.utils.data import Dataset


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


class Endless:
    """A sampler or batch sampler, over and over, as those of timm's and Ultralytics' loaders."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        while True:
            yield from self.inner
