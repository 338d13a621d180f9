# python examples/torchdata_fashion.py --epochs 4
"""Fashion-MNIST through torchdata's StatefulDataLoader: stopped in the middle of an epoch, then resumed."""

import argparse
import itertools

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import infobatch
from infobatch.lab.datasets import fashion

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=fashion.NUM_TRAIN)
arguments = parser.parse_args()

train_x, train_y, test_x, test_y = fashion.load()
data = TensorDataset(train_x[: arguments.samples], train_y[: arguments.samples])
torch.manual_seed(0)
model = fashion.small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss(reduction="none")


def fresh():
    """What a new process would build before it loads the states."""
    train_data = infobatch.InfoBatch(data, arguments.epochs)
    return train_data, StatefulDataLoader(train_data, batch_size=128, sampler=train_data.sampler)


def train(train_data, batches):
    for x, y in batches:
        train_data.update(criterion(model(x), y)).backward()
        optimizer.step()
        optimizer.zero_grad()


train_data, loader = fresh()
train(train_data, loader)  # the first epoch, whole
train(train_data, itertools.islice(loader, 3))  # three batches of the second
states = train_data.state_dict(), loader.state_dict()

train_data, loader = fresh()
train_data.load_state_dict(states[0])
loader.load_state_dict(states[1])
for _ in range(train_data.epoch, arguments.epochs):
    train(train_data, loader)
with torch.no_grad():
    accuracy = (model.eval()(test_x).argmax(1) == test_y).float().mean().item()
print(f"test accuracy {accuracy:.1%}")
print(train_data.savings)
