"""Screen pruning rules cheaply: many variants, few seeds, one learning rate at a time.

    python benchmarks/screen.py VARIANTS.txt --task fashion --seeds 100 101 102 --jobs 2 --out FILE.json

VARIANTS.txt has a line per variant: an arm as in ``infobatch compare --arms``, a length and a learning rate. An arm
that ends with ``+steps`` scales its steps instead of its gradients, for optimizers that ignore a gradient's scale.
Finished runs are not repeated: run the same command to resume, with more variants or seeds if you like.
A screen finds candidates. What it finds is confirmed by ``infobatch compare`` on seeds that it did not use.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from infobatch.files import write_atomically
from infobatch.lab.options import parse_options
from infobatch.lab.run.arms import Arm
from infobatch.lab.run.machine import versions
from infobatch.lab.run.settings import RunSettings, settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import Task, load_task
from infobatch.policies import BiasedPolicyWarning

SCALED = "+steps"


class ScaledSteps(Run):
    """A run whose learning rate is multiplied by the mean weight of the epoch's samples."""

    def __init__(self, task: Task, settings: RunSettings, folder: Path) -> None:
        super().__init__(task, settings, folder)
        self.optimizer.register_step_pre_hook(lambda *_: self.scale(self.mean_weight))
        self.optimizer.register_step_post_hook(lambda *_: self.scale(1 / self.mean_weight))

    @property
    def mean_weight(self) -> float:
        return self.num_samples / len(self.train_data.plan.order)

    def scale(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= factor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", type=Path)
    parser.add_argument("--task", default="fashion")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--epochs", type=int, help="instead of the task's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each on one thread")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    lines = [line.split("#")[0].split() for line in arguments.variants.read_text().splitlines()]
    variants = [(arm, float(length), float(rate)) for arm, length, rate in filter(None, lines)]
    results = {"commands": [], "runs": []}
    if arguments.out.exists():
        results = json.loads(arguments.out.read_text())
    command = f"python benchmarks/screen.py {' '.join(sys.argv[1:])}"
    if command not in results["commands"]:
        results["commands"].append(command)
    results["versions"] = versions()
    key = ("arm", "length", "learning_rate", "seed")
    done = {tuple(run[name] for name in key) for run in results["runs"]}
    missing = [
        (*variant, seed)
        for seed in arguments.seeds
        for variant in variants
        if (*variant, seed) not in done
    ]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(one_run, arguments, *settings) for settings in missing]
        for run in as_completed(runs):
            results["runs"].append(run.result())
            text = json.dumps(results, indent=0) + "\n"
            write_atomically(arguments.out, lambda path, text=text: path.write_text(text))


def one_run(arguments: argparse.Namespace, arm: str, length: float, rate: float, seed: int) -> dict:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BiasedPolicyWarning)
    options = parse_options(arguments.set)
    task = load_task(arguments.task, data=arguments.data, smoke=False, options=options)
    rule = arm.removesuffix(SCALED)
    Arm(rule).check()
    more = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    settings = settings_of(
        task, arm=rule, seed=seed, length=length, learning_rate=rate, options=options, **more
    )
    folder = Path(tempfile.mkdtemp())
    try:
        kind = Run if arm == rule else ScaledSteps
        result = kind(task, settings, folder).train(lambda standing: None)
    finally:
        shutil.rmtree(folder)
    print(arm, length, rate, seed, result.metric, f"{result.saved_fraction:.3f}", flush=True)
    return {
        "arm": arm,
        "length": length,
        "learning_rate": rate,
        "seed": seed,
        "metric": result.metric,
        **result.extra_metrics,
        "cost": result.costs.samples_forwarded / result.full_passes,
    }


if __name__ == "__main__":
    main()
