"""How long torch.compile takes for a step with ``update`` inside, against the same step without pruning.

    python benchmarks/compile_time.py [--repeats 3] [--out FILE]

Each measurement is the processor time of the first forward and backward pass in a fresh process with
empty caches, Inductor on the CPU, less that of a later one; the two steps alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.recipes.image_networks import NETWORKS
from infobatch.lab.run.machine import versions

RESULT = Path(__file__).parent / "results" / "compile_time.json"
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--step", choices=["plain", "update"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(compile_seconds(pruned=arguments.step == "update"))
        return
    seconds: dict[str, list[float]] = {"plain": [], "update": []}
    for _ in range(arguments.repeats):
        for step, measured in seconds.items():
            measured.append(in_fresh_process(step))
            print(f"{step:8} {measured[-1]:.1f} s", flush=True)
    ratio = statistics.median(seconds["update"]) / statistics.median(seconds["plain"])
    print(f"ratio of the medians: {ratio:.2f}")
    result = {
        "command": "python benchmarks/compile_time.py",
        "network": "resnet, 308,650 parameters",
        "batch_size": BATCH,
        "cpu_seconds": seconds,
        "ratio": ratio,
        "versions": versions(),
    }
    text = json.dumps(result, indent=1) + "\n"
    write_atomically(arguments.out, lambda path: path.write_text(text))


def in_fresh_process(step: str) -> float:
    # Compiling in the process itself, so that its processor time is all of it.
    environment = os.environ | {
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, __file__, "--step", step]
    return float(subprocess.check_output(command, env=environment, text=True).split()[-1])


def compile_seconds(*, pruned: bool) -> float:
    """Compile one step and run it twice; return what the first run takes more than the second."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, criterion = NETWORKS["resnet"](), nn.CrossEntropyLoss(reduction="none")
    data = TensorDataset(torch.randn(4 * BATCH, 3, 32, 32), torch.randint(10, (4 * BATCH,)))
    train_data = infobatch.InfoBatch(data, 2)
    loader = DataLoader(train_data, batch_size=BATCH, sampler=train_data.sampler)

    @torch.compile
    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = criterion(model(images), labels)
        return train_data.update(losses) if pruned else losses.mean()

    taken = []
    for images, labels in loader:
        began = cpu_seconds()
        step(images, labels).backward()
        taken.append(cpu_seconds() - began)
    return taken[0] - taken[1]


def cpu_seconds() -> float:
    """Of this process and of the compilers that it has called."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
