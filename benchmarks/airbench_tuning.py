# nice -n 19 python benchmarks/airbench_tuning.py NAME --rate 0.5 --widths 32/64/64 --epochs 8 --data DIR
"""How ``cifar10 network=airbench`` was tuned: one run per call, on a validation split.

A run trains on four fifths of the training images, and is measured on the rest (``--test``: all of
them, and the test set, for settings that were chosen before). Beside the metric: the accuracy on every
fourth training image, not augmented, and the processor seconds. A run that was stopped continues; one
that is finished is not repeated. ``airbench_tuning_summary.py`` prints the table.

Memory that goes back to the system after each layer costs a fifth of the time. The stored runs had

    GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=268435456
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import Subset

from infobatch.files import write_atomically
from infobatch.lab.files import to_json
from infobatch.lab.recipes import optimizers
from infobatch.lab.recipes.evaluation import accuracy
from infobatch.lab.recipes.registry import load_recipe
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import as_task

RESULTS = Path(__file__).parent / "results" / "airbench_tuning"

KEPT = (  # of the run's own record
    "extra_metrics",
    "saved_fraction",
    "costs",
    "history",
    "settings",
    "versions",
    "hardware",
    "finished_at",
)


def sgd(groups, rate, *, momentum, bias):
    """The recipe's SGD, with other momentum, or a rate ``bias`` times higher for all vectors."""
    groups[1]["lr"] = rate * bias
    return torch.optim.SGD(groups, rate, momentum=momentum, nesterov=True)


def train(choice, data, folder):
    """Train once, and return what is stored."""
    options = {
        "network": "airbench",
        "widths": choice.widths,
        "precision": choice.precision,
        "epochs": str(choice.epochs),
        "batch_size": str(choice.batch),
        "score": choice.score,
    }
    recipe = load_recipe("cifar10", data=data, options=options)
    recipe.label_smoothing = choice.smoothing
    build = partial(sgd, momentum=choice.momentum, bias=choice.bias)
    optimizers.OPTIMIZERS["sgd"] = optimizers.Choice(build, choice.rate, choice.decay)
    task = as_task("cifar10", recipe)
    settings = settings_of(
        task,
        arm=choice.arm,
        seed=choice.seed,
        validation=not choice.test,
        options=options,
        learning_rate=choice.rate,
    )
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(task, settings, folder)

    def tell(standing):
        if standing["epoch_ended"]:
            last = standing["last"]
            done = f"{standing['epoch']}/{standing['epochs']}"
            print(choice.name, done, f"training loss {last['train_loss']:.4f}", flush=True)

    record = to_json(run.train(tell))
    every_fourth = Subset(run.train_set, range(0, len(run.train_set), 4))
    scores = run.train_data.scores
    return {
        "command": "python benchmarks/airbench_tuning.py " + choice.command,
        "choice": {
            name: value
            for name, value in vars(choice).items()
            if name not in ("name", "command", "data", "work")
        },
        "accuracy": record["metric"],
        "training_accuracy": accuracy(run.model, every_fourth, 500, prepare=recipe.prepare),
        "spread_of_scores": float(scores.std() / scores.mean()),
        **{name: record[name] for name in KEPT},
    }


def main():
    """Train, and store the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("airbench-tuning"), help="checkpoints")
    for option, default in {
        "rate": 0.5,
        "epochs": 8,
        "batch": 500,
        "widths": "32/64/64",
        "decay": 5e-4,
        "smoothing": 0.2,
        "momentum": 0.9,
        "bias": 1.0,
        "precision": "bfloat16",
        "arm": "full",
        "score": "gradient",
        "seed": 0,
    }.items():
        parser.add_argument(f"--{option}", type=type(default), default=default)
    parser.add_argument("--test", action="store_true")
    choice = parser.parse_args()
    choice.command = " ".join(
        [choice.name]
        + [
            f"--{name} {value}"
            for name, value in vars(choice).items()
            if name not in ("name", "data", "work", "test") and value != parser.get_default(name)
        ]
        + ["--test"] * choice.test
    )
    path = RESULTS / f"{choice.name}.json"
    if path.exists():
        print(f"{path} is there.")
        return
    folder = choice.work / choice.name
    record = train(choice, choice.data, folder)
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write_text(json.dumps(record, indent=1)))
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    print(f"{choice.name}: {record['accuracy']:.2f}, training {record['training_accuracy']:.2f}")


if __name__ == "__main__":
    main()
