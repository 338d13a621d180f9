"""WebDataset archives of small JPEG images, and what a training on them does, also as a rank.

    torchrun … keyed_archives.py FOLDER

Each rank leaves what it saw in FOLDER/rank-K.pt, by case.
"""

import faulthandler
import io
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import webdataset as wds
from PIL import Image
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate

import infobatch
from keyed_runs import losses_of

SHARDS, PER_SHARD, EPOCHS = 6, 20, 3
KEYS = [f"{shard}/{number:03d}" for shard in range(SHARDS) for number in range(PER_SHARD)]


def write_archives(folder):
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"train-{shard}.tar")) as archive:
            for number in range(PER_SHARD):
                file = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(file, "jpeg")
                label = str(number % 2)
                archive.write(
                    {"__key__": f"{shard}/{number:03d}", "jpg": file.getvalue(), "cls": label}
                )
    return str(folder / f"train-{{0..{SHARDS - 1}}}.tar")


def pipeline(urls, keeps, **options):
    """As on docs/streamed.md: chosen before anything is decoded."""
    data = wds.WebDataset(urls, shardshuffle=SHARDS, seed=0, **options).select(keeps)
    return data.shuffle(30, seed=0).decode("torchrgb").to_tuple("__key__", "jpg", "cls")


def loader_of(urls, keeps, workers=0, *, data_options=None, **options):
    data = pipeline(urls, keeps, **(data_options or {}))
    return DataLoader(
        data, batch_size=8, num_workers=workers, collate_fn=default_collate, **options
    )


def train_epoch(pruner, loader, epoch):
    """The keys in visiting order, each with its weight."""
    visited = {}
    for key, x, _ in loader:
        assert x.shape[1:] == (3, 8, 8)
        weights = pruner.weights(key)
        loss = pruner.update(losses_of(key, epoch), key=key)
        assert torch.allclose(loss, (losses_of(key, epoch) * weights).mean().float())
        assert not set(key) & set(visited)
        visited |= dict(zip(key, weights.tolist(), strict=True))
    return visited


def expected_epochs(epochs=EPOCHS, **options):
    """The same without archives, loaders and workers."""
    pruner = infobatch.KeyedPruner(EPOCHS, **{"delta": 1.0, **options})
    visits = []
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        kept = [key for key in KEYS if pruner.keeps(key)]
        visits.append(dict(zip(kept, pruner.weights(kept).tolist(), strict=True)))
        pruner.update(losses_of(kept, epoch), key=kept)
    pruner.set_epoch(epochs)
    return visits, pruner


class EpochSplit:
    """Gives each rank other archives in every epoch."""

    def __init__(self):
        self.epoch = 0

    def __call__(self, archives):
        archives = random.Random(self.epoch).sample(list(archives), SHARDS)
        return wds.split_by_node(archives)


def network():
    torch.manual_seed(0)
    return nn.Linear(3 * 64, 2)


def drive(out, *, sharded=False):
    """Each rank reads its share of the shards, in another order in every epoch, with two workers."""
    pruner, split = infobatch.KeyedPruner(EPOCHS, delta=1.0, sharded=sharded), EpochSplit()
    options = {"nodesplitter": split}
    loader = loader_of(
        str(out / f"train-{{0..{SHARDS - 1}}}.tar"), pruner.keeps, 2, data_options=options
    )
    visits, lengths = [], []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        split.epoch = epoch
        lengths.append(pruner.epoch_length)
        visits.append(train_epoch(pruner, loader, epoch))
    pruner.set_epoch(EPOCHS)
    return {
        "visits": visits,
        "lengths": lengths,
        "scores": pruner.scores(KEYS),
        "savings": str(pruner.savings),
    }


def drive_sharded(out):
    return drive(out, sharded=True)


def joined(out):
    """DDP with ranks that have different numbers of batches: torch's Join."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    options = {"nodesplitter": wds.split_by_node}
    loader = loader_of(
        str(out / f"train-{{0..{SHARDS - 1}}}.tar"), pruner.keeps, data_options=options
    )
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps = []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        count = 0
        with Join([model]):
            for key, x, y in loader:
                if dist.get_rank() == 1 and count >= 3:
                    break  # and fewer batches still
                losses = nn.functional.cross_entropy(model(x.flatten(1)), y, reduction="none")
                pruner.update(losses, key=key).backward()
                optimizer.step()
                optimizer.zero_grad()
                count += 1
        steps.append(count)
    return {"steps": steps, "weight": model.module.weight.detach()}


def equalised(out):
    """DDP with WebDataset's with_epoch: as many batches on each rank, from the epoch's length."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    urls = str(out / f"train-{{0..{SHARDS - 1}}}.tar")
    data = pipeline(urls, pruner.keeps, nodesplitter=wds.split_by_node)
    loader = wds.WebLoader(data, batch_size=8, collate_fn=default_collate)
    model = DistributedDataParallel(network())
    steps = []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        length = pruner.epoch_length or len(KEYS)
        count = 0
        for key, x, y in loader.with_epoch(int(0.8 * length / 2 / 8)):
            losses = nn.functional.cross_entropy(model(x.flatten(1)), y, reduction="none")
            pruner.update(losses, key=key).backward()
            count += 1
        steps.append(count)
    return {"steps": steps, "lengths": [passes.made for passes in pruner.savings.epochs]}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(200, exit=True)  # where ranks wait for each other, if they do
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1])
    results = {case.__name__: case(folder) for case in (drive, drive_sharded, joined, equalised)}
    torch.save(results, folder / f"rank-{os.environ['RANK']}.pt")
    time.sleep(0.2)
    dist.destroy_process_group()
