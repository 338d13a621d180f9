# fmt: off
# ruff: noqa
"""A training script in the manner of pytorch/examples' mnist, on data made here.

The lines that the diff in docs/scripts.md touches are written as they are there.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print('Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}'.format(
                epoch, batch_idx * len(data), len(train_loader.dataset),
                100. * batch_idx / len(train_loader), loss.item()))
            if args.dry_run:
                break
    print(f"epoch {epoch}: {batch_idx + 1} of {len(train_loader.dataset) // args.batch_size} steps")


def accuracy(model, device, loader):
    model.eval()
    with torch.no_grad():
        right = [(model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader]
    return sum(right) / len(loader.dataset)


def digits(size, seed, transform):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=generator)
    noise = torch.randn(size, generator=generator)
    return torch.utils.data.TensorDataset(x, (x.sum(1) + 0.3 * noise > 0).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--log-interval", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--workers", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cpu")
    train_kwargs = {"batch_size": args.batch_size}
    test_kwargs = {"batch_size": 64}
    if args.workers:
        accel_kwargs = {'num_workers': 1,
                        'persistent_workers': True,
                       'pin_memory': True,
                       'shuffle': True}
        train_kwargs.update(accel_kwargs)
        test_kwargs.update(accel_kwargs)
    transform = None
    dataset1 = digits(320, seed=0,
                       transform=transform)
    dataset2 = digits(100, seed=1,
                       transform=transform)
    train_loader = torch.utils.data.DataLoader(dataset1,**train_kwargs)
    test_loader = torch.utils.data.DataLoader(dataset2, **test_kwargs)
    model = nn.Sequential(nn.Linear(8, 2), nn.LogSoftmax(dim=1)).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        print(f"accuracy {accuracy(model, device, test_loader):.2f}")
        scheduler.step()

    print("done")


if __name__ == "__main__":
    main()
