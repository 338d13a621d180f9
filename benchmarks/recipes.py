# python benchmarks/recipes.py --data ../shared/data
"""Every recipe on a quiet machine: seconds saved beside sample passes saved, and how much gradients differ.

Each recipe is trained on all data, with the paper's mean rule and with our noise budget, one run at a time on one
thread, then again in the reverse order, so that whatever slows the machine down slows every arm. Seconds are those of
training, without evaluation. After each epoch it notes the spread (the standard deviation divided by the mean) of the
losses and of the gradients' sizes, which decides what the noise budget can leave out. Each finished recipe is stored;
run the same command to resume.
"""

from __future__ import annotations

import argparse
import json
import os
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

RECORD = Path(__file__).parent / "results" / "recipes.json"
SEED = 600


@dataclass(frozen=True)
class Size:
    """A recipe in a size that trains in half a minute, and its arms."""

    options: tuple[str, ...]
    mean: str = "infobatch"
    gradient: Gradient = "cross_entropy"

    @property
    def noise(self) -> str:
        return f"noise:tau=0.2:delta=1.0:gradient={self.gradient}"


IN_THREE_EPOCHS = Size(("count=256", "epochs=3"), mean="infobatch:delta=1.0")
SIZES = {
    "fashion": Size(("epochs=20",)),
    "cifar10": Size(("images=5000", "epochs=8", "network=small_resnet")),
    "covertype": Size(("rows=50000",)),
    "camvid": Size(("scale=2", "epochs=6")),
    "mae": Size(("images=2000", "epochs=8"), gradient="root"),
    "diffusion": Size(("images=1000", "epochs=8"), gradient="root"),
    "alpaca": IN_THREE_EPOCHS,
    "gsm8k": IN_THREE_EPOCHS,
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
        "command": "python benchmarks/recipes.py --data DIR",
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "seed": SEED,
    }
    for name, size in SIZES.items():
        if name not in record["recipes"]:
            record["recipes"][name] = measure(name, size, arguments.data)
            text = json.dumps(record, indent=1) + "\n"
            write_atomically(RECORD, lambda path, text=text: path.write_text(text))


def measure(name: str, size: Size, data: Path | None) -> dict[str, Any]:
    """Train each arm twice; return what each run cost."""
    train(name, size, data, "full", smoke=True)  # what is built at first use should not count
    arms = ("full", size.mean, size.noise)
    load = os.getloadavg()[0]  # of the last minute: 1 is this process
    runs = [train(name, size, data, arm) for arm in (*arms, *reversed(arms))]
    print(name, [(run["arm"], round(run["seconds"], 1)) for run in runs], flush=True)
    return {"options": size.options, "load": load, "runs": runs}


def train(
    name: str, size: Size, data: Path | None, arm: str, *, smoke: bool = False
) -> dict[str, Any]:
    """One run: its passes, its seconds, and the spreads after each epoch."""
    options = {} if smoke else parse_options(size.options)
    task = load_task(name, data=data, smoke=smoke, options=options)
    settings = settings_of(task, arm=arm, seed=SEED, options=options, smoke=smoke)
    spreads: dict[str, list[float]] = {"loss": [], "gradient": []}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(task, settings, Path(folder))

        def look(standing: dict[str, Any]) -> None:
            if standing["epoch_ended"]:
                scores = run.train_data.scores.numpy()
                spreads["loss"].append(spread(scores))
                spreads["gradient"].append(spread(gradient_size(scores, size.gradient)))

        result = run.train(look)
    return {
        "arm": arm,
        "passes": result.costs["samples_forwarded"],
        "kept": [epoch["kept_fraction"] for epoch in result.history],
        "seconds": result.costs["seconds"],
        "cpu_seconds": result.costs["cpu_seconds"],
        "pruning_seconds": result.costs["overhead_seconds"],
        "metric": result.metric,
        "spreads": spreads,
    }


def spread(values: np.ndarray) -> float:
    return float(values.std(dtype=np.float64) / values.mean(dtype=np.float64))


if __name__ == "__main__":
    main()
