# python benchmarks/sizes_summary.py
"""The table of docs/policies/noise.md about formulas for the sizes of gradients, from the stored runs."""

from __future__ import annotations

from pathlib import Path

from infobatch.lab.compare.results import read_results
from infobatch.lab.stats.intervals import estimate, signed
from infobatch.lab.stats.runs import FULL, Record

STORED = Path(__file__).parent / "results"
Runs = dict[int, Record]  # by seed
TASKS = {"fashion": "Fashion-MNIST, small CNN", "cifar10": "CIFAR-10, small ResNet"}


def main() -> None:
    print("| accuracy minus that with 1 − exp(−loss) | passes saved | √loss | ‖softmax − target‖ |")
    print("|---|---|---|---|")
    for task, name in TASKS.items():
        runs = by_arm(f"sizes-{task}") | by_arm(f"sizes-norms-{task}")
        usual = runs.get("cross_entropy")
        if usual:
            saved = sum(run.saved_fraction for run in usual.values()) / len(usual)
            cells = (difference(runs.get(arm, {}), usual) for arm in ("root", "score"))
            print(f"| {name} | {saved:.0%} | {' | '.join(cells)} |")


def by_arm(study: str) -> dict[str, Runs]:
    """The runs of a study by formula and seed, except for those on all data."""
    if not (STORED / study / "results.json").exists():
        return {}
    runs: dict[str, Runs] = {}
    for run in read_results(STORED / study).runs:
        if run.arm != FULL:
            formula = run.arm.partition("gradient=")[2] or "cross_entropy"
            runs.setdefault(formula, {})[run.seed] = run
    return runs


def difference(runs: Runs, usual: Runs) -> str:
    """The mean difference of runs with the same seed, with its 95% interval."""
    seeds = sorted(runs.keys() & usual.keys())
    if len(seeds) < 2:
        return "not measured"
    mean = estimate([runs[seed].metric - usual[seed].metric for seed in seeds])
    low, high = signed(mean.low, 2), signed(mean.high, 2)
    return f"{signed(mean.mean, 2)} ({low} to {high}), {len(seeds)} seeds"


if __name__ == "__main__":
    main()
