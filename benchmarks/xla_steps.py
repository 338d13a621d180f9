"""How many programs XLA compiles for a training loop, by epoch, and whether it trains as on the CPU.

PJRT_DEVICE=CPU python benchmarks/xla_steps.py --out benchmarks/results/xla_steps.json

Needs torch_xla, with the torch that it was built for, in an environment of its own. The device is XLA's CPU: a real lazy
device, whose compilations are those of a TPU; its seconds are not. A loop is right if epochs after the second compile
nothing: the first is whole, the second the first pruned one.
"""

from __future__ import annotations

import argparse
import json
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch_xla
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_xla.debug import metrics

import infobatch
from infobatch.files import write_atomically

PLAIN, PURE, PADDED_UPDATE = "mean, no pruning", "pure step, pad=True", "update, pad=True"
UPDATE, INDEX = "update", "update, index="
FORMS = (PLAIN, PURE, PADDED_UPDATE, UPDATE, INDEX)
PADDED = (PURE, PADDED_UPDATE)
SAMPLES, WIDTH, CLASSES, BATCH, EPOCHS, SEED = 500, 16, 4, 32, 5, 0


def problem() -> TensorDataset:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    noise = torch.randn(SAMPLES, CLASSES, generator=generator)
    return TensorDataset(x, (x[:, :CLASSES] + noise).argmax(1))


def compiled() -> int:
    """Programs compiled so far."""
    return int(metrics.counter_value("UncachedCompile") or 0)


class Loop:
    """A small model, its data, and one way to turn losses into a step."""

    def __init__(self, device: torch.device, form: str) -> None:
        torch.manual_seed(SEED)
        self.device, self.form = device, form
        self.model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES))
        self.model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.criterion = nn.CrossEntropyLoss(reduction="none")
        self.train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=1.0)
        batches = self.train_data.batch_sampler(BATCH, pad=form in PADDED)
        source = infobatch.Indexed(problem()) if form == INDEX else self.train_data
        self.loader = DataLoader(source, batch_sampler=batches)
        if form == PLAIN:
            self.loader = DataLoader(problem(), BATCH, drop_last=True)

    def loss(self, losses: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        if self.form == PLAIN:
            return losses.mean()
        if self.form == PURE:
            weights = self.train_data.batch_weights(device=self.device)
            self.train_data.record(losses)
            return (weights * losses).mean()
        return self.train_data.update(losses, index=index)

    def epoch(self) -> None:
        for batch in self.loader:
            index, (x, y) = batch if self.form == INDEX else (None, batch)
            losses = self.criterion(self.model(x.to(self.device)), y.to(self.device))
            self.loss(losses, index).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.device.type == "xla":
                torch_xla.sync()


def measure(form: str) -> dict[str, Any]:
    loop = Loop(torch_xla.device(), form)
    programs = []
    for _ in range(EPOCHS):
        before = compiled()
        loop.epoch()
        programs.append(compiled() - before)
    expected = Loop(torch.device("cpu"), form)
    for _ in range(EPOCHS):
        expected.epoch()
    pairs = zip(loop.model.parameters(), expected.model.parameters(), strict=True)
    difference = max((one.cpu() - other).abs().max().item() for one, other in pairs)
    return {
        "programs compiled by epoch": programs,
        "largest difference of a parameter from the CPU": difference,
        "passes": loop.train_data.savings.made or None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    # A process for each: programs that one has compiled would be there for the next.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        results = dict(zip(FORMS, pool.imap(measure, FORMS), strict=True))
    about = {
        "command": "PJRT_DEVICE=CPU python benchmarks/xla_steps.py --out benchmarks/results/xla_steps.json",
        "infobatch": infobatch.__version__,
        "torch": torch.__version__,
        "torch_xla": torch_xla.__version__,
        "seed": SEED,
        "samples": SAMPLES,
        "batch": BATCH,
    }
    text = json.dumps({**about, "forms": results}, indent=1) + "\n"
    write_atomically(arguments.out, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
