# infobatch compare examples/my_task.py --learning-rates 0.001,0.002,0.004 --seeds 3
"""A task of one's own for `infobatch compare`: four functions, and settings where the defaults do not fit."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from infobatch.lab.datasets import fashion

epochs = 8
batch_size = 64
learning_rate = 2e-3
metric = "accuracy"
margin = 0.5  # points of accuracy that you would accept losing; say it before you run
unit = "points"
counts_items = True  # the percentage of test images that are classified correctly
class_names = fashion.CLASS_NAMES


def data():
    """Return the training set and the test set."""
    train_x, train_y, test_x, test_y = fashion.load()
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def model():
    """Return a fresh network."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
    )


def losses(model, batch):
    """Return one loss per sample."""
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


@torch.no_grad()
def evaluate(model, data):
    """Return the metric on a data set."""
    device = next(model.parameters()).device
    right = [model(x.to(device)).argmax(1).cpu() == y for x, y in DataLoader(data, 500)]
    return 100 * torch.cat(right).float().mean().item()


def optimizer(model, learning_rate):
    """Return the optimizer; without this function it is AdamW."""
    return torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.05)


def labels(data):
    """For the report: the class of each training sample."""
    return [int(data[index][1]) for index in range(len(data))]


def show(data, index):
    """For the report: a sample as pixels, or as a text."""
    image = data[index][0][0]
    return ((image - image.min()) / (image.max() - image.min()) * 255).byte().numpy()
