"""Draw the figures of docs/how-it-works.md.

python benchmarks/explain.py docs/images

``draw.svg`` and ``unbiased.svg`` show losses that are drawn here, pruned by the library's own rule and
draw; ``epochs.svg`` shows the stored demo.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from infobatch.lab.compare.results import read_results
from infobatch.plan.draw import draw_plan
from infobatch.plan.strata import Strata

RESULTS = Path(__file__).parent / "results" / "demo"
BLUE, ORANGE, GREY = "#2563c9", "#b45309", "#9aa1ad"
STYLE = {
    "svg.hashsalt": "infobatch",  # the same figure has the same bytes
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def losses() -> np.ndarray:
    """10,000 losses, skewed as a trained model's are."""
    return np.random.default_rng(0).gamma(1.2, 0.5, 10_000).astype(np.float32)


def kept(values: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples that the mean rule keeps, and their weights."""
    strata = Strata.below(values, [(float(values.mean()), 0.5)])
    plan = draw_plan(strata, seed=0, epoch=epoch)
    return plan.order.numpy(), plan.weights.numpy()


def figure_of_a_draw() -> Figure:
    """All losses, then those that were kept, with their weights."""
    values = losses()
    order, weights = kept(values, epoch=1)
    bins = np.linspace(0, 3, 61)
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.hist(values, bins, color=GREY, label=f"all {len(values):,} samples")
    right.hist(values[order], bins, weights=weights, color=BLUE, alpha=0.45, label="with weights")
    right.hist(values[order], bins, color=BLUE, label=f"{len(order):,} samples kept")
    for axis in (left, right):
        axis.axvline(values.mean(), color=ORANGE, ls="--", label="mean")
        axis.set(xlabel="loss")
        axis.legend()
    left.set(ylabel="samples")
    return figure


def figure_of_many_draws() -> Figure:
    """The mean of the losses as 2,000 draws estimate it."""
    values = losses()
    draws = [kept(values, epoch) for epoch in range(2000)]
    weighted = [float(values[order] @ weights) / len(values) for order, weights in draws]
    plain = [float(values[order].mean()) for order, _ in draws]
    figure = Figure(figsize=(8, 3), layout="constrained")
    axis = figure.subplots()
    axis.hist(weighted, 40, color=BLUE, label="kept samples, with weights")
    axis.hist(plain, 40, color=GREY, label="kept samples, without")
    axis.axvline(values.mean(), color=ORANGE, ls="--", label="all samples")
    axis.set(xlabel="mean loss", ylabel="draws")
    axis.legend(loc="upper center")
    return figure


def figure_of_a_run() -> Figure:
    """The share of the samples that each epoch of the demo kept."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axis = figure.subplots()
    runs = [run for run in read_results(RESULTS).runs if run.length == 1 and not run.seed]
    for arm, colour in (("infobatch", BLUE), ("quantile", ORANGE)):
        (run,) = (run for run in runs if run.arm == arm)
        shares = [100 * epoch.kept_fraction for epoch in run.history]
        axis.step(range(len(shares)), shares, where="mid", color=colour, label=arm)
    axis.set(xlabel="epoch", ylabel="samples kept, %", ylim=(0, 105))
    axis.legend(loc="lower right")
    return figure


def main(folder: Path) -> None:
    """Draw all three."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, draw in (
            ("draw", figure_of_a_draw),
            ("unbiased", figure_of_many_draws),
            ("epochs", figure_of_a_run),
        ):
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
