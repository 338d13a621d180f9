# python benchmarks/seconds.py --data ../shared/data
"""Seconds saved beside sample passes saved, for every recipe, on a quiet machine.

All data, the mean rule and the noise budget are trained in one process on one thread, an epoch of each in turn, so
that whatever slows the machine down slows them alike. For each epoch it notes the sample passes, the seconds of
training (drawing the plan included, evaluation not) and those that pruning itself took. Sizes are small, so that
there are many epochs to compare. Each finished recipe is stored; run the same command to resume.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infobatch.files import write_atomically
from infobatch.lab.options import parse_options
from infobatch.lab.run.machine import hardware, versions
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task

RECORD = Path(__file__).parent / "results" / "seconds.json"
SEED = 700
EPOCHS = 12
MEAN, NOISE = "mean:delta=1.0", "noise:tau=0.2:delta=1.0"


@dataclass(frozen=True)
class Size:
    """A recipe whose epochs take a second or two."""

    options: tuple[str, ...]
    noise: str = NOISE


SIZES = {
    "fashion": Size(()),
    "cifar10": Size(("images=1500", "network=small_resnet")),
    "covertype": Size(("rows=100000",)),
    "camvid": Size(("scale=4",)),
    "mae": Size(("images=1000",), f"{NOISE}:gradient=root"),
    "diffusion": Size(("images=500",), f"{NOISE}:gradient=root"),
    "alpaca": Size(("count=128",)),
    "gsm8k": Size(("count=128",)),
}


class Timed(Run):
    """A run that is trained an epoch at a time."""

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """What one epoch cost."""
        before = self._costs_so_far()
        self._train_epoch(self.model, epoch, lambda standing: None)
        return {name: value - before[name] for name, value in self._costs_so_far().items()}

    def _costs_so_far(self) -> dict[str, float]:
        return {
            "passes": self.costs.samples_forwarded,
            "seconds": self.costs.seconds,
            "pruning_seconds": self.costs.overhead_seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"recipes": {}}
    if RECORD.exists():
        record = json.loads(RECORD.read_text())
    record |= {
        "command": "python benchmarks/seconds.py --data DIR",
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "seed": SEED,
    }
    for name, size in SIZES.items():
        if name not in record["recipes"]:
            record["recipes"][name] = measure(name, size, arguments.data)
            text = json.dumps(record, allow_nan=False, indent=1) + "\n"
            write_atomically(RECORD, lambda path, text=text: path.write_text(text))
            print(name, flush=True)


def measure(name: str, size: Size, data: Path | None) -> dict[str, Any]:
    """The costs of each arm, epoch by epoch."""
    options = parse_options(size.options)
    load = os.getloadavg()[0]  # of the last minute: this process alone is 1
    costs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for number, arm in enumerate(("full", MEAN, size.noise)):
            task = load_task(name, data=data, smoke=False, options=options)
            settings = settings_of(task, arm=arm, seed=SEED, options=options, epochs=EPOCHS)
            home = Path(folder) / str(number)
            home.mkdir()
            runs[arm], costs[arm] = Timed(task, settings, home), []
        for epoch in range(EPOCHS):
            # The order alternates, too: the first after another arm finds other data in the cache.
            for arm in list(runs)[:: 1 if epoch % 2 else -1]:
                costs[arm].append(runs[arm].train_epoch(epoch))
    return {"options": size.options, "load": load, "arms": costs}


if __name__ == "__main__":
    main()
