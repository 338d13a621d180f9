"""The paper's Table 1 at our scale: static methods against random and dynamic pruning, selection cost included.

    python benchmarks/table1.py [--out table1-fashion] [--task fashion] [--seeds 3] [--jobs 1] [--smoke]

One comparison in one folder: full data, every coreset method at 70, 50 and 30% of the data (30, 50 and 70% pruned), and
the dynamic arms, all for the same number of epochs. Stop it at any time and run the same command to resume; more seeds
can be added. Ends with a table by method and share, and says which methods are below random.

The same runs by hand: ``infobatch compare fashion --lengths 1 --seeds 3 --out table1-fashion --arms "$(python
benchmarks/table1.py --arms)"``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from infobatch.coresets import METHODS

SHARES = (0.7, 0.5, 0.3)
# The ensembles of the paper's table.
ENSEMBLES = {"grand": (4,), "el2n": (2, 20)}
DYNAMIC = ("infobatch", "random", "quantile")


def coreset_arms(shares: tuple[float, ...], smoke: bool) -> list[str]:
    arms = []
    for share in shares:
        for method in METHODS:
            for networks in (1,) if smoke else ENSEMBLES.get(method, (1,)):
                ensemble = f":networks={networks}" if networks > 1 else ""
                arms.append(f"coreset:{method}@{share:g}{ensemble}")
    return arms


def all_arms(smoke: bool) -> str:
    shares = SHARES[-1:] if smoke else SHARES
    return ",".join(["full", *DYNAMIC, *coreset_arms(shares, smoke)])


def table(results: dict) -> str:
    """Mean and deviation of the metric by arm, and what was saved, selection included."""
    by_arm: dict[str, list[dict]] = {}
    for run in results["runs"]:
        by_arm.setdefault(run["arm"], []).append(run)
    means = {
        arm: statistics.mean(run["metric"] for run in runs)
        for arm, runs in by_arm.items()
        if all(run["metric"] is not None for run in runs)
    }
    lines = [
        f"| arm | seeds | {results['metric']} | to random of its share | passes saved | of these passes, selection |",
        "|---|---|---|---|---|---|",
    ]
    for arm, runs in by_arm.items():
        values = [run["metric"] for run in runs if run["metric"] is not None]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        metric = f"{means[arm]:.2f}{spread}" if arm in means else "diverged"
        saved = statistics.mean(run["saved_fraction"] for run in runs)
        passes = statistics.mean(run["costs"]["selection_passes"] for run in runs)
        total = statistics.mean(run["costs"]["samples_forwarded"] for run in runs)
        lines.append(
            f"| `{arm}` | {len(runs)} | {metric} | {against_random(arm, means)} | {saved:.1%} "
            f"| {passes / total:.0%} |"
        )
    return "\n".join(lines)


def against_random(arm: str, means: dict[str, float]) -> str:
    share = arm.partition("@")[2].partition(":")[0]
    baseline = f"coreset:random@{share}"
    if (
        not arm.startswith("coreset:")
        or arm == baseline
        or arm not in means
        or baseline not in means
    ):
        return ""
    difference = means[arm] - means[baseline]
    return f"{difference:+.2f}{', worse than random' if difference < 0 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="fashion")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--arms", action="store_true", help="print the arms, and run nothing")
    arguments = parser.parse_args()
    arms = all_arms(arguments.smoke)
    if arguments.arms:
        print(arms)
        return
    out = arguments.out or Path(
        f"table1-{Path(arguments.task).stem}{'-smoke' if arguments.smoke else ''}"
    )
    command = [sys.executable, "-m", "infobatch.lab.cli", "compare", arguments.task]
    command += ["--arms", arms, "--lengths", "1", "--seeds", str(arguments.seeds)]
    command += ["--jobs", str(arguments.jobs), "--out", str(out)]
    if arguments.smoke:
        command.append("--smoke")
    subprocess.run(command, check=True)
    text = table(json.loads((out / "results.json").read_text()))
    (out / "table1.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
