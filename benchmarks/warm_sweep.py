# python benchmarks/warm_sweep.py --seeds 8
"""A sweep of four learning rates over four epochs: what warm scores save, and what they cost in quality.

The first run trains on all data and exports its scores; the runs with the other rates are pruned by them
from their first epoch on. Beside each: the same on all data, pruned without scores (cold), and all data
for as few steps as the warm run took (short). The model is one that was trained on other images before.
Each finished seed is stored; run the same command to resume.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import Subset

from infobatch.lab.run.machine import hardware, versions
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task

RESULTS = Path(__file__).parent / "results"
RATES = (0.05, 0.1, 0.2, 0.4)
EPOCHS, DELTA = 4, 0.75  # the last epoch is whole
RULE = f"mean:delta={DELTA}"  # the lab's batches are even: none is left with a few images
BEFORE = 10  # epochs of the training on other images
NUM_TEST = 5000
FIRST_SEED = 100  # those below were looked at while the set-up was changed


def trained(task, arm, seed, rate, *, scores=None, **more):
    """One run, in a folder that is gone afterwards; its scores are left in ``scores``."""
    settings = settings_of(task, arm=arm, seed=seed, epochs=EPOCHS, learning_rate=rate, **more)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(replace(task, evaluate_every=EPOCHS), settings, Path(folder))
        result = run.train(lambda standing: None)
        if scores is not None:
            run.train_data.export_scores(scores)
    return {
        "rate": rate,
        "seed": seed,
        "accuracy": result.metric,
        "passes": result.costs.samples_forwarded,
        "kept": [round(epoch.kept_fraction, 4) for epoch in result.history],
    }


def tuned(task, seed):
    """The task with a model that has been trained on images that the sweep neither trains nor tests on."""
    train, rest = task.data()
    test, before = Subset(rest, range(NUM_TEST)), Subset(rest, range(NUM_TEST, len(rest)))
    earlier = replace(task, data=lambda: (before, test), evaluate_every=BEFORE)
    settings = settings_of(earlier, arm="full", seed=seed, epochs=BEFORE, learning_rate=0.2)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(earlier, settings, Path(folder))
        run.train(lambda standing: None)
    weights = run.model.state_dict()

    def model():
        network = task.model()
        network.load_state_dict(weights)
        return network

    return replace(task, data=lambda: (train, test), model=model)


def sweep(task, seed, scores):
    """All runs of a seed: by name, the first rate's on all data first."""
    for rate in RATES:
        first = scores if rate == RATES[0] else None
        yield "full", trained(task, "full", seed, rate, scores=first)
        if rate == RATES[0]:
            continue
        warm = trained(task, f"{RULE}:scores={scores}", seed, rate)
        yield "warm", warm
        yield "cold", trained(task, RULE, seed, rate)
        yield "short", trained(task, "short", seed, rate, budget=warm["passes"])


def differences(runs, arm, other):
    """By seed: how much better an arm is than another, over the rates after the first."""
    by_run = {(run["arm"], run["rate"], run["seed"]): run["accuracy"] for run in runs}
    return [
        statistics.mean(by_run[arm, rate, seed] - by_run[other, rate, seed] for rate in RATES[1:])
        for seed in sorted({run["seed"] for run in runs})
    ]


def saved(runs, arm):
    """The share of the passes that a whole sweep saves, its first run included."""

    def passes(name):
        return sum(run["passes"] for run in runs if run["arm"] == name and run["rate"] != RATES[0])

    first = sum(run["passes"] for run in runs if run["rate"] == RATES[0])
    return 1 - (first + passes(arm)) / (first + passes("full"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS / "warm_sweep.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(options.out.read_text()) if options.out.exists() else {"runs": []}
    done = {run["seed"] for run in record["runs"]}
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        if seed in done:
            continue
        task = tuned(load_task("fashion"), seed)
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                {"arm": arm, **run} for arm, run in sweep(task, seed, Path(folder) / "scores.npz")
            ]
        record["runs"] += runs
        record |= {
            "command": f"python benchmarks/warm_sweep.py --seeds {options.seeds}",
            "rates": RATES,
            "epochs": EPOCHS,
            "delta": DELTA,
            "versions": versions(),
            "hardware": hardware(torch.device("cpu")),
        }
        temporary = options.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.replace(options.out)
        to_full = {arm: differences(runs, arm, "full")[0] for arm in ("warm", "cold", "short")}
        print(f"seed {seed}", {arm: round(value, 2) for arm, value in to_full.items()}, flush=True)


if __name__ == "__main__":
    main()
