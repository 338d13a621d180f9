# python benchmarks/warm_sweep.py --seeds 3 --start tuned
"""A sweep of four learning rates over four epochs: what warm scores save, and what they cost in quality.

The first run trains on all data and exports its scores; the runs with the other rates are pruned by them
from their first epoch on. Beside each: the same on all data, pruned without scores (cold), and all data
for as few steps as the warm run took (short). The model is a new one (scratch), or one that was trained
on other images before (tuned). Each finished seed is stored; run the same command to resume.
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
# Batches shrink, and not the epoch, and the images fill whole batches: an incomplete last batch would have
# another size in each arm, and one of a few images, at these rates and with BatchNorm, spoils a run.
RULE, NUM_TRAIN = f"mean:delta={DELTA}:shrink=batch", 39 * 128
BEFORE = 10  # epochs of the training on other images


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
        "passes": result.costs["samples_forwarded"],
        "kept": [round(epoch["kept_fraction"], 4) for epoch in result.history],
    }


def whole_batches(task):
    """The task with as many images as fill its batches."""
    train, test = task.data()
    return replace(task, data=lambda: (Subset(train, range(NUM_TRAIN)), test))


def tuned(task, seed):
    """The task with a model that has been trained on images that the sweep neither trains nor tests on."""
    train, rest = task.data()
    test, before = Subset(rest, range(5000)), Subset(rest, range(5000, 5000 + 31 * 128))
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


def summary(runs):
    """Means over seeds of a whole sweep, and the differences to the one on all data."""
    seeds = sorted({run["seed"] for run in runs})
    found = {(run["arm"], run["rate"], run["seed"]): run for run in runs}
    told = {}
    for arm in ("full", "warm", "cold", "short"):
        rows = []
        for seed in seeds:
            arms = [found["full", RATES[0], seed], *(found[arm, rate, seed] for rate in RATES[1:])]
            full = [found["full", rate, seed] for rate in RATES]
            best = max(arms, key=lambda run: run["accuracy"])
            rows.append(
                {
                    "saved": 1 - sum(r["passes"] for r in arms) / sum(r["passes"] for r in full),
                    "lost": statistics.mean(
                        a["accuracy"] - f["accuracy"]
                        for a, f in zip(arms[1:], full[1:], strict=True)
                    ),
                    "best": best["accuracy"],
                    "best_rate": best["rate"],
                }
            )
        differences = [row["lost"] for row in rows]
        error = statistics.stdev(differences) / len(rows) ** 0.5 if len(rows) > 1 else None
        told[arm] = {
            "saved": statistics.mean(row["saved"] for row in rows),
            "difference": statistics.mean(differences),
            "standard_error": error,
            "best": statistics.mean(row["best"] for row in rows),
            "best_rates": [row["best_rate"] for row in rows],
        }
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", choices=("scratch", "tuned"), default="tuned")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.out = options.out or RESULTS / f"warm_sweep_{options.start}.json"
    torch.set_num_threads(1)
    record = json.loads(options.out.read_text()) if options.out.exists() else {"runs": []}
    done = {run["seed"] for run in record["runs"]}
    for seed in range(options.seeds):
        if seed in done:
            continue
        task = whole_batches(load_task("fashion"))
        task = tuned(task, seed) if options.start == "tuned" else task
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                {"arm": arm, **run} for arm, run in sweep(task, seed, Path(folder) / "scores.npz")
            ]
        record["runs"] += runs
        record |= {
            "command": f"python benchmarks/warm_sweep.py --seeds {options.seeds} --start {options.start}",
            "rates": RATES,
            "epochs": EPOCHS,
            "delta": DELTA,
            "summary": summary(record["runs"]),
            "versions": versions(),
            "hardware": hardware(torch.device("cpu")),
        }
        temporary = options.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.replace(options.out)
        print(
            f"seed {seed}",
            {arm: round(row["difference"], 2) for arm, row in record["summary"].items()},
        )


if __name__ == "__main__":
    main()
