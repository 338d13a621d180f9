# python benchmarks/spreads.py --data ../shared/data
"""How much the gradients of a task differ, and what the noise budget leaves out for that reason.

Each recipe is trained once on all data and once with the noise budget. Of the first run it notes the spread (the
standard deviation divided by the mean) of the losses and of the gradients' sizes that follow from them, of the second
the share that its last epoch left out. Each finished recipe is stored; run the same command to resume.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infobatch.files import write_atomically
from infobatch.lab.options import parse_options
from infobatch.lab.run.machine import hardware, versions
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task
from infobatch.policies.gradient import Gradient, gradient_size

RECORD = Path(__file__).parent / "results" / "spreads.json"
SEED = 600
TAU = 0.2


@dataclass(frozen=True)
class Size:
    """A recipe in a size that trains in half a minute, and what its losses are."""

    options: tuple[str, ...]
    gradient: Gradient = "cross_entropy"


SIZES = {
    "fashion": Size(("epochs=20",)),
    "cifar10": Size(("images=5000", "epochs=8", "network=small_resnet")),
    "covertype": Size(("rows=50000",)),
    "camvid": Size(("scale=2", "epochs=6")),
    "mae": Size(("images=2000", "epochs=8"), gradient="root"),
    "diffusion": Size(("images=1000", "epochs=8"), gradient="root"),
    "alpaca": Size(("count=256", "epochs=3")),
    "gsm8k": Size(("count=256", "epochs=3")),
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
        "command": "python benchmarks/spreads.py --data DIR",
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "seed": SEED,
        "tau": TAU,
    }
    for name, size in SIZES.items():
        if name not in record["recipes"]:
            record["recipes"][name] = measure(name, size, arguments.data)
            text = json.dumps(record, indent=1, allow_nan=False) + "\n"
            write_atomically(RECORD, lambda path, text=text: path.write_text(text))


def measure(name: str, size: Size, data: Path | None) -> dict[str, Any]:
    """The spreads of one recipe, and what was left out."""
    scores, _ = train(name, size, data, "full")
    _, kept = train(name, size, data, f"noise:tau={TAU}:delta=1.0:gradient={size.gradient}")
    measured = {
        "options": size.options,
        "loss_spread": spread(scores),
        "gradient_spread": spread(gradient_size(scores, size.gradient)),
        "left_out": 1 - kept,
    }
    print(name, measured, flush=True)
    return measured


def train(name: str, size: Size, data: Path | None, arm: str) -> tuple[np.ndarray, float]:
    """The scores at the end of a run, and the share of the samples in its last epoch."""
    options = parse_options(size.options)
    task = load_task(name, data=data, smoke=False, options=options)
    settings = settings_of(task, arm=arm, seed=SEED, options=options)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(task, settings, Path(folder))
        result = run.train(lambda standing: None)
    return run.train_data.scores.numpy(), result.history[-1].kept_fraction


def spread(values: np.ndarray) -> float:
    return float(values.std(dtype=np.float64) / values.mean(dtype=np.float64))


if __name__ == "__main__":
    main()
