"""A small ResNet on CIFAR-10, on all data and with InfoBatch, an epoch of each in turn.

python benchmarks/cifar10.py --data DIR
python benchmarks/cifar10.py --source hub

DIR contains cifar-10-batches-bin, the binary version of https://www.cs.toronto.edu/~kriz/cifar.html; with
``--source hub`` Hugging Face datasets download the images. The two trainings alternate, so that whatever
else the machine does slows both; it prints which share of the sample passes and of the seconds InfoBatch
saves.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

import infobatch
from infobatch.lab.datasets.readers import CIFAR10_SOURCES, cifar10

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Cifar(Dataset):
    """Images as float tensors, flipped and shifted at random if ``augment``."""

    def __init__(self, images, labels, *, augment):
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
        self.images = (torch.from_numpy(images).float() / 255 - mean) / deviation
        self.labels = torch.from_numpy(labels)
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            if torch.rand(()) < 0.5:
                image = image.flip(2)
            down, right = torch.randint(0, 9, (2,)).tolist()
            image = nn.functional.pad(image, (4, 4, 4, 4))[:, down : down + 32, right : right + 32]
        return image, self.labels[index]


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def small_resnet(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


class Training:
    """One arm: a model, its optimizer and its loader."""

    def __init__(self, data, num_epochs, batch_size, *, policy):
        torch.manual_seed(0)
        self.model = small_resnet()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4
        )
        self.pruned = infobatch.InfoBatch(data, num_epochs, policy=policy) if policy else None
        if self.pruned is None:
            self.loader = DataLoader(data, batch_size, shuffle=True)
        else:
            self.loader = DataLoader(self.pruned, batch_size, sampler=self.pruned.sampler)
        self.schedule = OneCycleLR(self.optimizer, 0.1, total_steps=num_epochs * len(self.loader))
        if self.pruned is not None:
            self.schedule = infobatch.paced(self.schedule, self.pruned)
        self.criterion = nn.CrossEntropyLoss(reduction="none")
        self.seconds, self.passes = 0.0, 0

    def train_an_epoch(self):
        self.model.train()
        began = time.perf_counter()
        for x, y in self.loader:
            losses = self.criterion(self.model(x), y)
            loss = losses.mean() if self.pruned is None else self.pruned.update(losses)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.passes += len(x)
        self.seconds += time.perf_counter() - began

    @torch.no_grad()
    def accuracy(self, test):
        self.model.eval()
        right = [(self.model(x).argmax(1) == y).float() for x, y in DataLoader(test, 500)]
        return 100 * torch.cat(right).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder that contains cifar-10-batches-bin")
    parser.add_argument("--source", default="folder", choices=CIFAR10_SOURCES)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--policy", default="mean", choices=sorted(infobatch.policies.POLICIES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    images = cifar10(arguments.data, arguments.source)
    train = Cifar(*images.train(arguments.samples), augment=True)
    test = Cifar(*images.test(), augment=False)
    full = Training(train, arguments.epochs, 128, policy=None)
    pruned = Training(train, arguments.epochs, 128, policy=arguments.policy)
    for epoch in range(arguments.epochs):
        for arm in (full, pruned):
            arm.train_an_epoch()
        print(
            f"epoch {epoch}: {full.seconds:.1f} s, with InfoBatch {pruned.seconds:.1f} s",
            flush=True,
        )
    passes, seconds = 1 - pruned.passes / full.passes, 1 - pruned.seconds / full.seconds
    print(f"saved {passes:.1%} of the sample passes and {seconds:.1%} of the seconds")
    results = {
        "command": f"python benchmarks/cifar10.py {' '.join(sys.argv[1:])}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "infobatch": infobatch.__version__,
        },
        "seed": 0,
        "threads": torch.get_num_threads(),
        "passes": [full.passes, pruned.passes],
        "seconds": [full.seconds, pruned.seconds],
        "accuracy": [full.accuracy(test), pruned.accuracy(test)],
        "share_of_passes_saved": passes,
        "share_of_seconds_saved": seconds,
        "seconds_per_pass_saved": seconds / passes if passes else None,
    }
    print(json.dumps(results["accuracy"]))
    if arguments.out:
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=1) + "\n")
        temporary.replace(arguments.out)


if __name__ == "__main__":
    main()
