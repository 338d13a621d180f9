# torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""Distributed training with pruned epochs: the embedded Fashion-MNIST on any number of processes."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.lab.datasets import fashion


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    num_epochs = parser.parse_args().epochs

    dist.init_process_group("gloo")  # "nccl" where there are GPUs
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = fashion.load()
    model = DistributedDataParallel(fashion.small_cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss(reduction="none")

    train_data = infobatch.InfoBatch(TensorDataset(train_x, train_y), num_epochs)
    loader = DataLoader(train_data, batch_size=64, sampler=train_data.sampler)
    for epoch in range(num_epochs):
        model.train()
        for x, y in loader:  # each rank gets its share; all make the same number of steps
            loss = train_data.update(criterion(model(x), y))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                right = model.module(test_x).argmax(1) == test_y
            print(f"epoch {epoch}: test accuracy {right.float().mean():.1%}")
    if dist.get_rank() == 0:
        print(train_data.savings)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
