"""The demo: four trainings on real images, what they cost and what they reach.

Run by ``make demo``, or ``python -m infobatch.lab.demo --out DIR [--seed 0] [--epochs 30]``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.lab import fashion

BATCH_SIZE = 128
LEARNING_RATE = 0.1


@dataclass
class Run:
    """What one training cost and reached."""

    arm: str
    epochs: int
    seed: int
    accuracy: float = 0.0
    sample_passes: int = 0
    saved_fraction: float = 0.0
    seconds: float = 0.0
    overhead_ms_per_epoch: float | None = None
    kept_fractions: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """The scores and the plan at the start of one pruned epoch."""

    epoch: int
    scores: np.ndarray[Any, Any]
    order: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]


class Demo:
    """Trains the arms one after the other on the embedded data."""

    def __init__(self, progress: Progress, *, epochs: int, seed: int) -> None:
        train_x, train_y, self.test_x, self.test_y = fashion.load()
        self.data = TensorDataset(train_x, train_y)
        self.progress, self.epochs, self.seed = progress, epochs, seed

    def train(self, arm: str, *, policy: str | None, epochs: int) -> tuple[Run, Snapshot | None]:
        """Train with a pruning policy, or plainly on all data."""
        torch.manual_seed(self.seed)
        model = fashion.small_cnn()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        criterion = nn.CrossEntropyLoss(reduction="none")
        pruned = None
        if policy is None:
            loader = DataLoader(self.data, BATCH_SIZE, shuffle=True)
        else:
            pruned = infobatch.InfoBatch(self.data, epochs, policy=policy, seed=self.seed)
            loader = DataLoader(pruned, BATCH_SIZE, sampler=pruned.sampler)
        steps = len(loader) * epochs
        schedule: Any = OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.2)
        if pruned is not None:
            schedule = infobatch.paced(schedule, pruned)

        run, snapshot, overhead = Run(arm, epochs, self.seed), None, 0.0
        task = self.progress.add_task(arm, total=epochs)
        began = time.perf_counter()
        for epoch in range(epochs):
            model.train()
            if pruned is not None:
                before = time.perf_counter()
                kept = len(pruned.sampler)  # draws the epoch's plan
                overhead += time.perf_counter() - before
                run.kept_fractions.append(kept / len(self.data))
                if epoch == epochs // 2:
                    plan = pruned.plan
                    snapshot = Snapshot(
                        epoch, pruned.scores.numpy(), plan.order.numpy(), plan.weights.numpy()
                    )
            for x, y in loader:
                losses = criterion(model(x), y)
                before = time.perf_counter()
                loss = losses.mean() if pruned is None else pruned.update(losses)
                overhead += time.perf_counter() - before
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            run.accuracies.append(self.accuracy(model))
            self.progress.advance(task)
        run.seconds = time.perf_counter() - began
        run.accuracy = run.accuracies[-1]
        run.sample_passes = epochs * len(self.data)
        if pruned is not None:
            run.sample_passes = pruned.savings.made
            run.overhead_ms_per_epoch = 1000 * overhead / epochs
        run.saved_fraction = 1 - run.sample_passes / (self.epochs * len(self.data))
        return run, snapshot

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Accuracy on the test images, in percent."""
        model.eval()
        right = model(self.test_x).argmax(1) == self.test_y
        return 100 * int(right.sum()) / len(right)


def compare(progress: Progress, *, epochs: int, seed: int) -> tuple[list[Run], Snapshot | None]:
    """Train the four arms; the last has all data but only the quantile rule's sample passes."""
    demo = Demo(progress, epochs=epochs, seed=seed)
    full, _ = demo.train("all data", policy=None, epochs=epochs)
    mean, snapshot = demo.train("InfoBatch, mean rule", policy="mean", epochs=epochs)
    quantile, _ = demo.train("InfoBatch, quantile rule", policy="quantile", epochs=epochs)
    short_epochs = max(1, round(quantile.sample_passes / fashion.NUM_TRAIN))
    short, _ = demo.train("all data, fewer epochs", policy=None, epochs=short_epochs)
    return [full, mean, quantile, short], snapshot


def table(runs: list[Run]) -> Table:
    """The result as a table."""
    out = Table(title="Fashion-MNIST, 12,000 images, small CNN")
    for name in (
        "training (epochs)",
        "accuracy",
        "sample passes",
        "saved",
        "seconds",
        "overhead/epoch",
    ):
        out.add_column(name, justify="left" if name.startswith("training") else "right")
    for run in runs:
        overhead = run.overhead_ms_per_epoch
        out.add_row(
            f"{run.arm} ({run.epochs})",
            f"{run.accuracy:.2f}%",
            f"{run.sample_passes:,}",
            f"{run.saved_fraction:.1%}",
            f"{run.seconds:.1f}",
            "–" if overhead is None else f"{overhead:.1f} ms",
        )
    return out


def picture(runs: list[Run], snapshot: Snapshot, path: Path) -> None:
    """Draw the kept fraction by epoch, and the losses before and after pruning and rescaling."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only needed at the end

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, 4, figsize=(16, 3.6), layout="constrained")
    for run in runs:
        if run.kept_fractions:
            axes[0].step(range(run.epochs), run.kept_fractions, where="mid", label=run.arm)
    axes[0].set(title="Kept fraction", xlabel="epoch", ylim=(0, 1.05))
    axes[0].legend()
    kept = snapshot.scores[snapshot.order]
    bins = np.linspace(0, float(np.quantile(snapshot.scores, 0.99)), 40)
    mean = float(snapshot.scores.mean())
    stages = (
        (f"Losses before epoch {snapshot.epoch}", snapshot.scores, None),
        ("after soft pruning", kept, None),
        ("after rescaling", kept, snapshot.weights),
    )
    for axis, (title, losses, weights) in zip(axes[1:], stages, strict=True):
        axis.hist(losses, bins=bins, weights=weights, color="tab:blue", alpha=0.8)
        if losses is kept:
            axis.hist(snapshot.scores, bins=bins, histtype="step", color="tab:red", ls="--")
        axis.axvline(mean, color="black", lw=1, label="mean")
        axis.set(title=title, xlabel="loss", yscale="log")
        axis.sharey(axes[1])
    axes[1].legend()
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110)
    plt.close(figure)
    temporary.replace(path)  # atomic


def write_results(runs: list[Run], path: Path) -> None:
    """Write the runs with what is needed to repeat them, atomically."""
    results = {
        "command": f"python -m infobatch.lab.demo {' '.join(sys.argv[1:])}".rstrip(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "infobatch": infobatch.__version__,
        },
        "threads": torch.get_num_threads(),
        "runs": [asdict(run) for run in runs],
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(path)  # atomic


def main() -> None:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    columns = (
        TextColumn("{task.description:26}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        runs, snapshot = compare(progress, epochs=arguments.epochs, seed=arguments.seed)
    console.print(table(runs))
    console.print(
        "One seed: differences of a few tenths of a point are noise (2,000 test images, ±0.7)."
    )
    write_results(runs, arguments.out / "results.json")
    if snapshot is not None:
        picture(runs, snapshot, arguments.out / "pruning.png")
    console.print(f"Wrote {arguments.out / 'results.json'} and {arguments.out / 'pruning.png'}")


if __name__ == "__main__":
    main()
