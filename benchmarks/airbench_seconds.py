# python benchmarks/airbench_seconds.py
"""Processor seconds of training steps of ``cifar10 network=airbench``, and what makes them fewer.

On one thread, with random images, batches of 500, and the recipe's own losses and optimizer: each
setting in a process of its own, in turn, for several rounds. Other processes may run meanwhile, so
only the ratios of a round mean much.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

RECORD = Path(__file__).parent / "results" / "airbench_seconds.json"
KEEP = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=268435456"
ROUNDS, STEPS, BATCH = 3, 6, 500
WIDTHS = ("32/64/64", "32/128/128", "64/128/128")
# Widths, precision, and whether the process keeps the memory that it has freed.
SETTINGS = [(widths, "bfloat16", True) for widths in WIDTHS]
SETTINGS += [("64/128/128", "bfloat16", False), ("64/128/128", "float32", True)]
SETTINGS += [("64/128/128", "float32", False)]


def steps(widths, precision):
    """Processor seconds per 50,000 passes of whole steps, and of their augmentation alone."""
    import torch  # noqa: PLC0415 - only the measuring processes need it

    from infobatch.lab.recipes.airbench import Airbench, parse_widths  # noqa: PLC0415
    from infobatch.lab.recipes.cifar10 import AIRBENCH, Recipe, standardised  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    batch = images, torch.randint(10, (BATCH,))
    # The hub as the source needs no folder, and nothing is read from it here.
    recipe = Recipe(source="hub", network=AIRBENCH, widths=widths, precision=precision)
    model = Airbench(standardised(images), parse_widths(widths), precision)
    model = model.to(memory_format=torch.channels_last)
    optimizer = recipe.optimizer(model, recipe.learning_rate)

    def step():
        recipe.losses(model, batch).losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def seconds(work):
        began = time.process_time()
        for _ in range(STEPS):
            work()
        return (time.process_time() - began) / STEPS / BATCH * 50_000

    for _ in range(3):
        step()
    return {
        "step": seconds(step),
        "augmentation": seconds(lambda: recipe.prepare(recipe.augment(images))),
    }


def main():
    from infobatch.lab.run.machine import versions  # noqa: PLC0415 - needs torch

    rows = [
        {"widths": widths, "precision": precision, "keeps_memory": keeps, "rounds": []}
        for widths, precision, keeps in SETTINGS
    ]
    for number in range(ROUNDS):
        for row in rows:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            environment.pop("GLIBC_TUNABLES", None)
            if row["keeps_memory"]:
                environment["GLIBC_TUNABLES"] = KEEP
            command = [sys.executable, __file__, row["widths"], row["precision"]]
            output = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            ).stdout
            row["rounds"].append(json.loads(output))
            print(number, *command[2:], row["keeps_memory"], output, flush=True)
    model_name = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    record = {
        "command": "python benchmarks/airbench_seconds.py",
        "environment": {"GLIBC_TUNABLES": KEEP},
        "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": model_name,
        "versions": versions(),
        "unit": "processor seconds per 50,000 sample passes, batches of 500, one thread",
        "rows": rows,
    }
    RECORD.write_text(json.dumps(record, indent=1))
    for row in rows:
        middle = statistics.median(measured["step"] for measured in row["rounds"])
        print(row["widths"], row["precision"], row["keeps_memory"], round(middle, 1))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(steps(*sys.argv[1:])))
    else:
        main()
