"""One epoch boundary of a billion samples, in this machine's memory; measured once.

python benchmarks/billion.py [--size 1000000000] [--out benchmarks/results/billion.json]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from itertools import islice
from pathlib import Path

import torch

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.run.machine import versions

BATCH = 1 << 20


def gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/billion.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    pruner = infobatch.Pruner(arguments.size, num_epochs=10)

    began = time.perf_counter()
    batches = iter(pruner.batch_sampler(BATCH))
    batch = next(batches)
    first_plan = time.perf_counter() - began
    print(f"first plan, whole: {first_plan:.1f} s", flush=True)
    while batch is not None:  # indices become Python numbers a batch at a time, never all at once
        losses = torch.empty(len(batch)).exponential_(generator=generator)
        pruner.update(losses)
        batch = next(batches, None)
    del batches
    before = gigabytes()
    print(f"epoch issued and updated: {time.perf_counter() - began:.1f} s", flush=True)

    began = time.perf_counter()
    walk = iter(pruner.sampler)
    next(walk)
    boundary = time.perf_counter() - began
    began = time.perf_counter()
    handed_out = sum(1 for _ in islice(walk, 1_000_000))
    nanoseconds = 1e9 * (time.perf_counter() - began) / handed_out
    results = {
        "command": f"python benchmarks/billion.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": versions(),
        "seed": 0,
        "threads": arguments.threads,
        "size": arguments.size,
        "kept": len(pruner.plan),
        "first_plan_seconds": first_plan,
        "boundary_seconds": boundary,
        "boundary_ns_per_sample": 1e9 * boundary / arguments.size,
        "peak_gigabytes_before_boundary": before,
        "peak_gigabytes": gigabytes(),
        "handing_out_ns_per_sample": nanoseconds,
    }
    text = json.dumps(results, indent=1) + "\n"
    write_atomically(arguments.out, lambda path: path.write_text(text))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
