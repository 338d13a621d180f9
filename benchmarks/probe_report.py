# python benchmarks/probe_report.py
"""The report in docs/probe.md: a probe of the recipe ``fashion`` in an ordinary training on all data."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.recipes.fashion import Recipe
from infobatch.lab.run.machine import versions

RESULT = Path(__file__).parent / "results" / "probe_report.json"
EPOCHS, LAYER = 20, "6"  # the third of four convolutions


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    recipe = Recipe()
    data, _ = recipe.data()
    model = recipe.model()
    optimizer = recipe.optimizer(model, recipe.learning_rate)
    loader = DataLoader(data, recipe.batch_size, shuffle=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=EPOCHS * len(loader)
    )
    probe = infobatch.Probe(model.get_submodule(LAYER))
    for _ in range(EPOCHS):
        for batch in loader:
            probe.watch(recipe.losses(model, batch)).losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    print(probe.report())
    result = {
        "command": "python benchmarks/probe_report.py",
        "epochs": EPOCHS,
        "layer": LAYER,
        "numbers": probe.numbers,
        "report": probe.report().splitlines(),
        "versions": versions(),
    }
    write_atomically(RESULT, lambda path: path.write_text(json.dumps(result, indent=1) + "\n"))


if __name__ == "__main__":
    main()
