"""Where the seconds of a pruned training epoch go: the CIFAR-10 example under torch's profiler.

python benchmarks/profile_epoch.py --data DIR/cifar10
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from infobatch.files import write_atomically
from infobatch.lab.run.machine import versions

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from cifar10 import Cifar, Training  # noqa: E402

PARTS = ("next batch", "forward", "update", "backward", "optimizer", "schedule", "epoch boundary")


def profiled_epoch(training: Training) -> None:
    """An epoch of the example's loop, its parts named."""
    training.model.train()
    with record_function("epoch boundary"):
        training.pruned.set_epoch(training.pruned.epoch + 1)
        len(training.loader)  # draws the plan
    batches = iter(training.loader)
    while True:
        with record_function("next batch"):
            batch = next(batches, None)
        if batch is None:
            return
        x, y = batch
        with record_function("forward"):
            losses = training.criterion(training.model(x), y)
        with record_function("update"):
            loss = training.pruned.update(losses)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            training.optimizer.step()
            training.optimizer.zero_grad()
        with record_function("schedule"):
            training.schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/profile.json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    train = Cifar(arguments.data, "train", arguments.samples, augment=True)
    training = Training(train, 8, 128, policy="mean")
    training.train_an_epoch()  # the first is whole; the second is profiled
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        profiled_epoch(training)
    times = {event.key: event.cpu_time_total / 1e6 for event in profiler.key_averages()}
    seconds = {part: times[part] for part in PARTS}
    results = {
        "command": f"python benchmarks/profile_epoch.py {' '.join(sys.argv[1:])}",
        "versions": versions(),
        "seed": 0,
        "threads": torch.get_num_threads(),
        "samples": len(training.pruned.plan),
        "seconds": seconds,
        "shares": {part: value / sum(seconds.values()) for part, value in seconds.items()},
    }
    text = json.dumps(results, indent=1) + "\n"
    write_atomically(arguments.out, lambda path: path.write_text(text))
    for part, share in sorted(results["shares"].items(), key=lambda pair: -pair[1]):
        print(f"{part:16} {share:7.2%}")


if __name__ == "__main__":
    main()
