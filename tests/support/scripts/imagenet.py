# fmt: off
# ruff: noqa
"""A training script in the manner of pytorch/examples' imagenet, on data made here.

The lines that the diff in docs/scripts.md touches are written as they are there.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils.data.distributed
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Subset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--start-epoch", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--resume", default="")
parser.add_argument("--out", required=True)


def pictures(seed, size):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=generator)
    noise = torch.randn(size, generator=generator)
    return torch.utils.data.TensorDataset(x, (x.sum(1) + 0.3 * noise > 0).long())


def save_checkpoint(args, state, is_best):
    torch.save(state, os.path.join(args.out, f"checkpoint-{state['epoch']}.pt"))


def main():
    args = parser.parse_args()
    args.distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if args.distributed:
        dist.init_process_group("gloo")
    rank, best_acc1 = int(os.environ.get("RANK", "0")), 0
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    if args.resume:
        checkpoint = torch.load(args.resume)
        args.start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    train_dataset, val_dataset = pictures(0, 320), pictures(1, 64)

    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
        val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset, shuffle=False, drop_last=True)
    else:
        train_sampler = None
        val_sampler = None
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(val_dataset, batch_size=64, sampler=val_sampler)

    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)

        train(train_loader, model, criterion, optimizer)
        acc1 = validate(val_loader, model)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)

        if rank == 0:
            save_checkpoint(args, {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_acc1": best_acc1,
                'optimizer' : optimizer.state_dict(),
                'scheduler' : scheduler.state_dict()
            }, is_best)

    if args.distributed:
        dist.destroy_process_group()


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n


def accuracy(output, target, topk):
    best = output.argsort(descending=True) == target.unsqueeze(1)
    return [best[:, :k].float().sum(1).mean().unsqueeze(0) for k in topk]


def train(train_loader, model, criterion, optimizer):
    losses, top1 = AverageMeter(), AverageMeter()
    for images, target in train_loader:
        output = model(images)
        loss = criterion(output, target)

        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Loss {losses.sum / losses.count:.6f}")


def validate(val_loader, model):
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in val_loader]
    return sum(right) / len(right)


if __name__ == "__main__":
    main()
