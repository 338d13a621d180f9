"""What the exchange between ranks adds to an epoch boundary, over real gloo processes.

    python benchmarks/exchange.py [--size 1281167] [--ranks 2 4] [--repeats 5] [--out FILE]

The ratio is of a boundary with the exchange to one without it, in the same processes (each rank on its own,
all at the same time), medians over repeats, the slowest rank counting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.run.machine import versions


def boundary(pruner: infobatch.Pruner, rng: np.random.Generator) -> float:
    """Train an epoch on random losses; return the milliseconds up to the next one's first index."""
    walk = iter(pruner.sampler)
    next(walk)  # the epoch begins, and with it its plan
    length = len(pruner.sampler)
    for _ in zip(range(length - 1), walk, strict=False):
        pass
    losses = torch.from_numpy(rng.standard_exponential(length, dtype=np.float32))
    pruner.update(losses[:-1])
    if dist.is_initialized():
        dist.barrier()
    began = time.perf_counter()
    pruner.update(losses[-1:])  # closes the epoch
    next(iter(pruner.sampler))
    return 1000 * (time.perf_counter() - began)


def one_rank(rank: int, job: tuple[int, int, int, int], queue) -> None:
    ranks, size, repeats, port = job
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    joint = infobatch.Pruner(size, 1000, delta=1.0)
    alone = infobatch.Pruner(size, 1000, delta=1.0, rank=0, world_size=1)
    rng = np.random.default_rng(rank)
    shared_rng = np.random.default_rng(7)
    times = [(boundary(joint, rng), boundary(alone, shared_rng)) for _ in range(repeats + 1)]
    queue.put((rank, times[1:]))
    dist.barrier()
    dist.destroy_process_group()


def measure(size: int, ranks: int, repeats: int, port: int) -> dict[str, float]:
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    job = (ranks, size, repeats, port)
    mp.start_processes(one_rank, args=(job, queue), nprocs=ranks, start_method="spawn")
    by_rank = [queue.get()[1] for _ in range(ranks)]
    slowest = np.array(by_rank).max(axis=0)
    with_exchange, without = (statistics.median(slowest[:, column]) for column in (0, 1))
    return {
        "ranks": ranks,
        "boundary_ms": with_exchange,
        "boundary_without_exchange_ms": without,
        "ratio": with_exchange / without,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_281_167)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = {
        "command": f"python benchmarks/exchange.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": versions(),
        "size": arguments.size,
        "seeds": "the rank's number",
        "measurements": [],
    }
    for ranks in arguments.ranks:
        row = measure(arguments.size, ranks, arguments.repeats, 29_500 + ranks)
        results["measurements"].append(row)
        print(
            f"{ranks} ranks, N = {arguments.size:,}: {row['boundary_ms']:.0f} ms, "
            f"{row['ratio']:.2f} × a boundary without the exchange",
            flush=True,
        )
    if arguments.out:
        text = json.dumps(results, indent=1) + "\n"
        write_atomically(arguments.out, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
