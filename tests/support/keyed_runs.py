"""Training loops over keyed samples without a model: losses that depend on key and epoch alone."""

import zlib

import torch

import infobatch

KEYS = [f"{shard:02d}/{number:04d}" for shard in range(5) for number in range(40)]


def loss_of(key, epoch):
    """Falls with the epochs, differs between keys, and is the same in every process."""
    chance = zlib.crc32(str(key).encode()) / 2**32
    return 3 * chance**2 / (1 + epoch) + 0.1 * (zlib.crc32(f"{key} {epoch}".encode()) / 2**32)


def losses_of(keys, epoch):
    return torch.tensor([loss_of(key, epoch) for key in keys])


def batches(keys, size=16):
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def train_epoch(pruner, epoch, keys=KEYS, **options):
    """Read, choose, train; return the keys that were kept and the weighted mean losses."""
    pruner.set_epoch(epoch)
    kept = list(filter(pruner.keeps, keys))
    means = [
        pruner.update(losses_of(batch, epoch), key=batch, **options).item()
        for batch in batches(kept)
    ]
    return kept, means


def trained(epochs, keys=KEYS, **options):
    pruner = infobatch.KeyedPruner(num_epochs=10, **{"delta": 1.0, **options})
    visits = [train_epoch(pruner, epoch, keys) for epoch in range(epochs)]
    return pruner, visits
