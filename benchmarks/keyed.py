"""What pruning by key costs: the table of an epoch, a lookup in a worker, an update, and memory.

    python benchmarks/keyed.py [--size 10000000] [--out FILE] [--check]

Keys are strings, as WebDataset has them. Times are those of the processor (one thread), so that other
processes do not count. ``spread`` is how far the weights' sum strays from the number of samples, which
independent decisions leave open: measured over 200 epochs, and by the formula √Σ(1/p − 1). ``--check``
exits with 1 if a lookup takes more than 2.5 µs or an epoch's table more than 10 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

import infobatch
from infobatch.files import write_atomically
from infobatch.keyed.chance import class_weights, draw, hash_keys
from infobatch.lab.run.machine import versions
from infobatch.memory.memory import SCORE
from infobatch.plan import Strata
from infobatch.plan.draw import DROPPED

MOST = {"lookup_us": 2.5, "first_table_s": 10.0, "next_table_s": 10.0}
BATCH, LOOKUPS, EPOCHS = 256, 500_000, 200


def keys(start: int, stop: int) -> list[str]:
    return [f"train-{number // 10_000:05d}/{number:09d}" for number in range(start, stop)]


def seconds(work) -> float:  # type: ignore[no-untyped-def]
    began = time.process_time()
    work()
    return time.process_time() - began


def peak() -> int:
    """The largest memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(size: int) -> dict[str, float]:
    rng, before = np.random.default_rng(0), peak()
    pruner = infobatch.KeyedPruner(1000, policy="auto")
    for start in range(0, size, 100_000):
        names = keys(start, min(start + 100_000, size))
        losses = rng.exponential(0.5, len(names)).astype(np.float32)
        pruner.update(torch.from_numpy(losses), key=names)
    figures = {"first_table_s": seconds(lambda: pruner.set_epoch(1))}
    figures["peak_bytes"] = (peak() - before) / size
    figures["kept"] = pruner.epoch_length / size
    chosen = rng.permutation(size)[: min(LOOKUPS, size)]
    visited, spent = [], []
    for part in np.array_split(chosen, len(chosen) // 1000):  # just read, as a worker's samples are
        samples = [{"__key__": keys(n, n + 1)[0], "jpg": b"", "cls": b""} for n in part.tolist()]
        kept: list[bool] = []
        spent.append(seconds(lambda: kept.extend(map(pruner.keeps, samples))) / len(part))  # noqa: B023 - called at once
        visited += [sample["__key__"] for sample, keep in zip(samples, kept, strict=True) if keep]
    figures["lookup_us"] = 1e6 * statistics.median(spent)
    batches = [visited[at : at + BATCH] for at in range(0, len(visited) - BATCH, BATCH)]
    losses = torch.rand(BATCH, generator=torch.Generator().manual_seed(0))

    def updates() -> None:
        for batch in batches:
            pruner.update(losses, key=batch)

    figures["update_us"] = 1e6 * seconds(updates) / (BATCH * len(batches))
    pruner.set_epoch(2)
    table = pruner._board.table
    hashes = rng.permutation(table.hashes[table.labels != DROPPED])  # a whole epoch of visits
    values = torch.from_numpy(rng.random(len(hashes), np.float32))
    pruner._record.add(hashes, dict.fromkeys((SCORE, *pruner._planner.channels), values))
    figures["next_table_s"] = seconds(lambda: pruner.set_epoch(3))
    columns = pruner._memory.rows.columns.values()
    files = sum(path.stat().st_size for path in pruner._board.folder.iterdir())
    figures["shared_bytes"] = files / size
    figures["column_bytes"] = sum(column.nbytes for column in columns) / size
    return figures


def spread(size: int = 1_000_000) -> dict[str, float]:
    """Half of the samples kept with probability one half, relative to the number of samples."""
    labels = (np.arange(size) % 2).astype(np.uint8)
    strata, hashes = Strata(labels, (0.5,)), hash_keys(np.arange(size))
    weights = class_weights(strata)
    drawn = (draw(strata, hashes, seed=0, epoch=epoch) for epoch in range(EPOCHS))
    sums = [weights[labels[labels != DROPPED]].sum() for labels in drawn]
    return {
        "size": size,
        "epochs": EPOCHS,
        "mean": float(np.mean(sums) / size),
        "measured": float(np.std(sums) / size),
        "formula": float(np.sqrt(size / 2) / size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "command": f"python benchmarks/keyed.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": versions(),
        "threads": 1,
        "seeds": [0],
        "size": arguments.size,
        "keyed": measure(arguments.size),
        "spread": spread(),
    }
    print(json.dumps({name: results[name] for name in ("size", "keyed", "spread")}, indent=1))
    if arguments.out:
        text = json.dumps(results, indent=1) + "\n"
        write_atomically(arguments.out, lambda path: path.write_text(text))
    slow = {name: results["keyed"][name] for name in MOST if results["keyed"][name] > MOST[name]}
    if slow and arguments.check:
        sys.exit(f"Above {MOST}: {slow}")


if __name__ == "__main__":
    main()
