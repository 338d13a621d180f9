# torchrun --standalone --nproc-per-node 2 examples/accelerate_fashion.py
"""Accelerate with pruned epochs: the embedded Fashion-MNIST on any number of processes."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.lab.datasets import fashion


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=fashion.NUM_TRAIN)
    parser.add_argument("--checkpoints", help="a folder to save to after each epoch")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = fashion.load()
    data = TensorDataset(train_x[: options.samples], train_y[: options.samples])
    pruner = infobatch.Pruner(len(data), options.epochs)
    loader = DataLoader(
        infobatch.Indexed(data),
        64,
        sampler=pruner.sampler,
        collate_fn=infobatch.with_index(),
        generator=torch.Generator(),  # the global one is the model's alone
    )
    model = fashion.small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps_per_epoch = len(loader)
    schedule = OneCycleLR(optimizer, 0.1, total_steps=options.epochs * steps_per_epoch)
    # Not prepared: it goes by the samples. With the steps, any number of processes may resume.
    scheduler = infobatch.paced(schedule, pruner, steps_per_epoch=steps_per_epoch)
    accelerator.register_for_checkpointing(pruner, scheduler)
    if options.resume:
        accelerator.load_state(options.checkpoints)
    criterion = nn.CrossEntropyLoss(reduction="none")
    for epoch in range(pruner.epoch, options.epochs):
        model.train()
        for index, (x, y) in loader:
            loss = pruner.update(criterion(model(x), y), index=index)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if options.checkpoints:
            accelerator.save_state(options.checkpoints)
        model.eval()
        with torch.no_grad():
            right = accelerator.unwrap_model(model)(test_x).argmax(1) == test_y
        accelerator.print(f"epoch {epoch}: test accuracy {right.float().mean():.1%}")
    accelerator.print(f"{pruner.savings} on {accelerator.num_processes} processes")
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
