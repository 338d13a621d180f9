"""One epoch boundary of a billion samples, in this machine's memory: one process, or one of many ranks.

    python benchmarks/billion.py [--size 1000000000] [--ranks 1024] [--sharded] [--policy noise] [--out FILE]

With several ranks this process is the first of them, in torch.distributed's "fake" process group: every
collective call allocates and copies what a real one does and returns at once. So the seconds are those
of this rank's own work, without the network; how many bytes it would receive is counted. (An all_reduce
is counted twice, as a ring sends it.)

Each measurement is added to the file, in place of an earlier one with the same name.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import infobatch
from infobatch.distributed import Communicator
from infobatch.files import write_atomically
from infobatch.lab.run.machine import versions

BATCH = 1 << 20


class Received(TorchDispatchMode):
    """Counts the bytes that this rank receives from the others."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.share = (ranks - 1) / ranks  # the rest is this rank's own
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        call = function.name().partition("::")[2]
        if function.namespace == "c10d":
            times = 2 if "allreduce" in call else 1
            self.bytes[call.strip("_")] += int(times * self.share * total_bytes(args[0]))
        return function(*args, **(kwargs or {}))


def total_bytes(outputs) -> int:
    if isinstance(outputs, torch.Tensor):
        return outputs.nbytes
    return sum(total_bytes(output) for output in outputs)


def gigabytes() -> float:
    """The largest resident size of this process so far, in units of 10⁹ bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


class Stopwatch:
    """Seconds of a part, on the clock and of this process; the latter are its own on a busy machine."""

    def __enter__(self) -> Stopwatch:
        self._began = (time.perf_counter(), time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        self.cpu_seconds = time.process_time() - self._began[1]


def let_ranks_be_equal(ranks: int) -> None:
    """Let sums over the ranks be those of ranks with this one's scores: a fake group has no others."""
    add_up = Communicator.sum

    def of_equals(self: Communicator, values: np.ndarray) -> np.ndarray:
        add_up(self, values)  # takes its time, and is counted
        return values * ranks

    Communicator.sum = of_equals  # type: ignore[method-assign]


def measure(arguments: argparse.Namespace, received: Received) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    pruner = infobatch.Pruner(
        arguments.size, num_epochs=10, policy=arguments.policy, sharded=arguments.sharded
    )
    before = gigabytes()
    with Stopwatch() as first_plan:
        batches = iter(pruner.batch_sampler(BATCH))
        batch = next(batches)
    print(f"first plan, whole: {first_plan.seconds:.1f} s", flush=True)
    while batch is not None:  # indices become Python numbers a batch at a time, never all at once
        losses = torch.empty(len(batch)).exponential_(generator=generator)
        batch = next(batches, None)
        with Stopwatch() as closing:
            pruner.update(losses)  # the last one closes the epoch
    del batches
    print(f"epoch closed: {closing.seconds:.1f} s, {resident():.1f} GB", flush=True)
    peak_of_closing = gigabytes()

    with Stopwatch() as planning:
        walk = iter(pruner.sampler)
        next(walk)
    with Stopwatch() as handing_out:
        handed_out = sum(1 for _ in islice(walk, 1_000_000))
    parts = {"first_plan": first_plan, "closing": closing, "planning": planning}
    return {
        "kept": len(pruner.plan),
        **{f"{name}_seconds": part.seconds for name, part in parts.items()},
        **{f"{name}_cpu_seconds": part.cpu_seconds for name, part in parts.items()},
        "boundary_seconds": closing.seconds + planning.seconds,
        "boundary_cpu_seconds": closing.cpu_seconds + planning.cpu_seconds,
        "boundary_ns_per_sample": 1e9 * (closing.seconds + planning.seconds) / arguments.size,
        "resident_gigabytes": resident(),
        "peak_gigabytes_at_start": before,
        "peak_gigabytes_when_closed": peak_of_closing,
        "peak_gigabytes": gigabytes(),
        "received_bytes": dict(received.bytes),
        "handing_out_ns_per_sample": 1e9 * handing_out.seconds / handed_out,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000_000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--policy", default="mean")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", help="of the measurement; by default what was measured")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/billion.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=arguments.ranks)
        let_ranks_be_equal(arguments.ranks)
    with Received(arguments.ranks) as received:
        figures = measure(arguments, received)
    name = f"{arguments.ranks} ranks, {arguments.policy}" + ", sharded" * arguments.sharded
    row = {
        "name": arguments.name or name,
        "command": f"python benchmarks/billion.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": versions(),
        "seed": 0,
        "threads": arguments.threads,
        "size": arguments.size,
        "ranks": arguments.ranks,
        **figures,
    }
    print(json.dumps(row, indent=1))
    known = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    rows = [other for other in known.get("measurements", []) if other["name"] != row["name"]]
    text = json.dumps({"measurements": [*rows, row]}, indent=1) + "\n"
    write_atomically(arguments.out, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
