"""What a cheap look at the batch is worth: how well it predicts the sizes of gradients, and what that could save.

    python benchmarks/looks.py fashion [--data DIR] [--set images=10000 …] [--layers 2,5]

One training on all data. In the last epoch of each third, every sample's size of the gradient with respect to the
logits is compared with four predictions of it, made before the step: the moving average of earlier epochs (what
``auto`` goes by, other views), the recipe's proxy on the same view, a linear model of the features after a layer, and
the size itself, which no look can beat. For each: the share of samples to keep such that the noise really grows by a
fifth, and the saving that the forecast's formula gives, 1 − cost × 1.2, with what the look costs. No pruned run is made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import default_collate

from infobatch.experimental.blocking import PredictedSizes, pooled
from infobatch.experimental.flops import forward_flops, share_before
from infobatch.experimental.proxy import Proxy
from infobatch.files import write_atomically
from infobatch.lab.run.steps import Recording, Replaying, per_sample, sizes_of
from infobatch.lab.task import Task, load_task
from infobatch.savings import FORWARD
from infobatch.stream import StreamPruner

TAU, FLOOR, SMOOTHING, EVERY = 0.2, 0.05, 0.7, 4
STORED = Path(__file__).parent / "results" / "looks.json"
Array = np.ndarray[Any, np.dtype[np.float64]]


def share_to_keep(sizes: Array, predicted: Array) -> float:
    """The mean of p = min(1, max(FLOOR, c · predicted)) with the c for which Σ g²/p is (1 + TAU) Σ g²."""
    squares = np.square(sizes)
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        chances = np.clip(2.0**middle * predicted, FLOOR, 1)
        enough = float((squares / chances).sum()) > (1 + TAU) * float(squares.sum())
        low, high = (middle, high) if enough else (low, middle)
    return float(np.clip(2.0**high * predicted, FLOOR, 1).mean())


class Looks:
    """A training on all data, with predictions of every gradient's size before each step."""

    def __init__(self, task: Task, layers: list[str], seed: int) -> None:
        torch.manual_seed(seed)
        assert task.proxy is not None
        self.task, self.layers = task, layers
        self.train, _ = task.data() if task.data_of_seed is None else task.data_of_seed(seed)
        self.count: int = len(self.train)  # type: ignore[arg-type]
        self.model, small = task.model(), task.proxy()
        networks = (self.model, small)
        self.optimizer, learner = (
            task.optimizer(network, task.learning_rate) for network in networks
        )
        steps = task.epochs * (self.count // task.batch_size)
        self.schedules = [task.schedule(each, steps) for each in (self.optimizer, learner)]
        # It keeps nearly everything, so that the proxy learns from whole batches.
        self.proxy = Proxy(small, learner, StreamPruner(keep=0.999), cost=0, every=EVERY)
        self.linear = {name: PredictedSizes() for name in layers}
        self.average = torch.full((self.count,), torch.nan)
        self.costs = self._costs()
        self.outputs: dict[str, torch.Tensor] = {}
        for name in layers:
            self.model.get_submodule(name).register_forward_hook(self._noting(name))

    def _costs(self) -> dict[str, float]:
        """What each look costs, as a share of a training step."""
        inputs: list[torch.Tensor] = []
        with torch.no_grad():
            self.task.losses(Recording(self.model, inputs).eval(), self._batch(torch.arange(8)))
        share = forward_flops(self.proxy.model, inputs[0]) / forward_flops(self.model, inputs[0])
        costs = {"proxy": share * (FORWARD + (1 - FORWARD) / EVERY)}
        for name in self.layers:
            costs[name] = share_before(self.model.get_submodule(name), self.model, inputs[0])
        self.model.train()
        return costs

    def _batch(self, index: torch.Tensor) -> Any:
        return default_collate([self.train[place] for place in index.tolist()])

    def _noting(self, name: str) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        def note(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.outputs[name] = pooled(output.detach())

        return note

    def step(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Train on a batch; return the sizes of its gradients and every prediction of them."""
        batch = self._batch(index)
        inputs: list[torch.Tensor] = []
        looks: dict[str, torch.Tensor] = {"average": self.average[index]}

        def look(network: nn.Module) -> Any:
            samples = self.task.losses(Recording(network, inputs), batch)
            looks["proxy"] = sizes_of(per_sample(samples)).detach()
            return samples

        self.proxy.select(look)
        samples = per_sample(self.task.losses(Replaying(self.model, inputs[0]), batch))
        sizes = looks["size"] = sizes_of(samples).detach()
        for name, linear in self.linear.items():
            looks[name] = linear.score(self.outputs[name])
            linear.learn(self.outputs[name], sizes, torch.ones(len(sizes)))
        self.optimizer.zero_grad()
        samples.losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        for schedule in self.schedules:
            schedule.step()
        seen = looks["average"]
        mixed = SMOOTHING * seen + (1 - SMOOTHING) * sizes
        self.average[index] = torch.where(seen.isnan(), sizes, mixed)
        return looks

    def epoch(self, number: int) -> dict[str, Array]:
        """Train for an epoch; return the sizes and the predictions of all samples in whole batches."""
        if self.task.begin_epoch is not None:
            self.task.begin_epoch(number)
        order = torch.randperm(self.count).split(self.task.batch_size)
        batches = [self.step(index) for index in order if len(index) == self.task.batch_size]
        values = {name: torch.cat([looks[name] for looks in batches]) for name in batches[0]}
        known = ~values["average"].isnan()
        return {name: value[known].double().numpy() for name, value in values.items()}

    def row(self, name: str, values_by_look: dict[str, Array]) -> dict[str, Any]:
        """What a look is worth in an epoch."""
        sizes, predicted = values_by_look["size"], values_by_look[name]
        kept, look = share_to_keep(sizes, predicted), self.costs.get(name, 0.0)
        # What is left out after a layer has cost the layers before; a proxy costs the same for all.
        cost = kept + look * (1 - kept if name in self.layers else 1)
        logs = np.log(np.stack([sizes, predicted]).clip(1e-6))
        return {
            "look": name,
            "look_cost": round(look, 4),
            "kept": round(kept, 4),
            "saving": round(1 - cost * (1 + TAU), 4),
            "correlation": round(float(np.corrcoef(logs)[0, 1]), 3),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row for each third of the training and each prediction."""
        thirds = {round(self.task.epochs * third / 3) - 1: third for third in (1, 2, 3)}
        rows = []
        for number in range(self.task.epochs):
            values_by_look = self.epoch(number)
            if number in thirds:
                rows += [
                    {"third": thirds[number], **self.row(name, values_by_look)}
                    for name in values_by_look
                ]
                print(*rows[-len(values_by_look) :], sep="\n", flush=True)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--layers", default="")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    options = dict(part.split("=", 1) for part in arguments.set)
    task = load_task(arguments.task, data=arguments.data, options={**options, "score": "gradient"})
    layers = [name for name in arguments.layers.split(",") if name]
    rows = Looks(task, layers, arguments.seed).rows()
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    stored[" ".join([arguments.task, *arguments.set, f"seed={arguments.seed}"])] = rows
    write_atomically(STORED, lambda path: path.write_text(json.dumps(stored, indent=1) + "\n"))


if __name__ == "__main__":
    main()
