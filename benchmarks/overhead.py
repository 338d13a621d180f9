"""What pruning costs, beside what torch's RandomSampler costs in the same run.

    python benchmarks/overhead.py [--sizes 50000 1281167 14197122] [--repeats 5] [--out FILE]

Every figure is the median of interleaved repeats, on one thread. Milliseconds are of this machine; the
ratios are what carries over. Peak memory is what numpy and torch allocate, counted by a sampling of the
process's resident size in a child process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler

import infobatch

POLICIES = ("mean", "quantile")


def pruner_after_one_epoch(size: int, policy: str) -> infobatch.Pruner:
    """A pruner whose scores are exponential, as losses in the middle of a training are."""
    pruner = infobatch.Pruner(size, 1000, policy=policy, delta=1.0)
    train_one_epoch(pruner, np.random.default_rng(0))
    return pruner


def train_one_epoch(pruner: infobatch.Pruner, rng: np.random.Generator) -> None:
    """Hand out an epoch and report its losses in large batches; stop after the last update."""
    walk = iter(pruner.sampler)
    length = len(pruner.plan)
    losses = torch.from_numpy(rng.standard_exponential(length, dtype=np.float32))
    hand_out(walk, length)
    pruner.update(losses)


def hand_out(walk, count: int) -> None:
    indices = iter(walk)
    for _ in range(count // 1024):
        for _ in zip(range(1024), indices, strict=False):
            pass
    for _ in zip(range(count % 1024), indices, strict=False):
        pass


def milliseconds(action) -> float:
    began = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began)


def boundaries(size: int, repeats: int) -> dict[str, float]:
    """From the last update to the first index of the next epoch."""
    times: dict[str, list[float]] = {name: [] for name in ("random_sampler", *POLICIES)}
    pruners = {policy: pruner_after_one_epoch(size, policy) for policy in POLICIES}
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        times["random_sampler"].append(milliseconds(lambda: next(iter(RandomSampler(range(size))))))
        for policy, pruner in pruners.items():
            times[policy].append(milliseconds(lambda p=pruner: next(iter(p.sampler))))
            train_one_epoch(pruner, rng)
    return {name: statistics.median(values) for name, values in times.items()}


def updates(size: int, repeats: int) -> dict[str, float]:
    """Microseconds an update, beside losses.mean(); a pruned epoch."""
    result = {}
    for batch in (128, 1024):
        losses = torch.rand(batch, requires_grad=True)
        count = min(size // 2 // batch, 300)
        times: dict[str, list[float]] = {"mean": [], "update": [], "update_index": []}
        for repeat in range(repeats):
            pruner = pruner_after_one_epoch(size, "mean")
            walk = iter(pruner.sampler)
            index = torch.tensor([next(walk) for _ in range(batch)])
            hand_out(walk, batch * (count - 1))
            by_index = pruner_after_one_epoch(size, "mean")
            by_index.set_epoch(1)
            by_index.update(losses, index=index)
            pruner.update(losses)
            actions = {
                "mean": losses.mean,
                "update": partial(pruner.update, losses),
                "update_index": partial(by_index.update, losses, index=index),
            }
            for name, action in actions.items():
                began = time.perf_counter()
                for _ in range(count - 2):
                    action()
                times[name].append(1e6 * (time.perf_counter() - began) / (count - 2))
            if size > 2_000_000 and repeat == 1:
                break
        for name, values in times.items():
            result[f"{name}_{batch}_us"] = statistics.median(values)
    return result


def handing_out(size: int, repeats: int) -> dict[str, float]:
    """Nanoseconds a sample through torch's BatchSampler, the start of the epoch not counted."""
    times: dict[str, list[float]] = {"random_sampler": [], "mean": []}
    count = min(size, 500_000) // 256
    for _ in range(repeats):
        samplers = {
            "random_sampler": RandomSampler(range(size)),
            "mean": infobatch.Pruner(size, 10).sampler,
        }
        for name, sampler in samplers.items():
            batches = iter(BatchSampler(sampler, 256, drop_last=False))
            next(batches)
            began = time.perf_counter()
            for _ in range(count - 1):
                next(batches)
            times[name].append(1e9 * (time.perf_counter() - began) / (count - 1) / 256)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes_per_sample(size: int, policy: str) -> dict[str, float]:
    """Run one boundary in a fresh process and read its resident memory at the peak and after."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import overhead, resource, gc, numpy as np
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()
def reset_peak():
    open('/proc/self/clear_refs', 'w').write('5')
def peak():
    return next(int(l.split()[1]) * 1024 for l in open('/proc/self/status') if l.startswith('VmHWM'))
warm = overhead.pruner_after_one_epoch(1000, {policy!r}); next(iter(warm.sampler))
gc.collect()
base = resident()
pruner = overhead.pruner_after_one_epoch({size}, {policy!r})
gc.collect(); reset_peak()
next(iter(pruner.sampler))
gc.collect()
print((peak() - base) / {size}, (resident() - base) / {size})
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    at_peak, after = map(float, run.stdout.split())
    return {"peak": at_peak, "after": after}


def measure(size: int, repeats: int) -> dict[str, object]:
    boundary = boundaries(size, repeats)
    update = updates(size, repeats)
    out = handing_out(size, repeats)
    return {
        "size": size,
        "boundary_ms": boundary,
        "boundary_ratio": {p: boundary[p] / boundary["random_sampler"] for p in POLICIES},
        "update_us": update,
        "update_ratio": {
            f"{name}_{batch}": update[f"{name}_{batch}_us"] / update[f"mean_{batch}_us"]
            for name in ("update", "update_index")
            for batch in (128, 1024)
        },
        "hand_out_ns": out,
        "hand_out_ratio": out["mean"] / out["random_sampler"],
        "bytes_per_sample": {policy: peak_bytes_per_sample(size, policy) for policy in POLICIES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50_000, 1_281_167, 14_197_122])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "command": f"python benchmarks/overhead.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "infobatch": infobatch.__version__,
        },
        "threads": 1,
        "seeds": [0, 1],
        "measurements": [],
    }
    for size in arguments.sizes:
        row = measure(size, arguments.repeats)
        results["measurements"].append(row)
        print(f"N = {size:,}")
        for policy in POLICIES:
            print(
                f"  epoch boundary, {policy:8}: {row['boundary_ms'][policy]:8.2f} ms, "
                f"{row['boundary_ratio'][policy]:.3f} × RandomSampler; peak "
                f"{row['bytes_per_sample'][policy]['peak']:.1f} bytes a sample, then "
                f"{row['bytes_per_sample'][policy]['after']:.1f}"
            )
        for name, ratio in row["update_ratio"].items():
            print(f"  {name:17}: {row['update_us'][name + '_us']:6.1f} µs, {ratio:.2f} × mean()")
        print(
            f"  handing out: {row['hand_out_ns']['mean']:.1f} ns a sample, "
            f"{row['hand_out_ratio']:.2f} × RandomSampler",
            flush=True,
        )
        if arguments.out:
            temporary = arguments.out.with_suffix(".tmp")
            temporary.write_text(json.dumps(results, indent=1) + "\n")
            temporary.replace(arguments.out)


if __name__ == "__main__":
    main()
