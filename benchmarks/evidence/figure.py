"""Quality against cost, drawn from stored results: a line for each arm through its lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image
from tables import plain_name

from infobatch.lab.compare.results import labelled, read_results
from infobatch.lab.report.looks import looks_of
from infobatch.lab.stats.runs import Summary

FIRST_PICTURE = "saving.png"  # on the README's first screen
COLOURS = (  # by the number of a look
    "#3d4450",
    "#2563c9",
    "#b45309",
    "#0f7b6c",
    "#a21caf",
    "#4d7c0f",
    "#be123c",
    "#0891b2",
    "#ca8a04",
    "#7f1d1d",
)  # fmt: skip


def is_current(picture: Path, folder: Path) -> bool:
    """Whether a picture was drawn from these results, as they are drawn now: it names both."""
    if not picture.exists():
        return False
    with Image.open(picture) as image:
        return image.info.get("Source") == _hash_of(folder)


def draw(folder: Path, picture: Path) -> None:
    """Draw the arms with 95% intervals over seeds."""
    results = labelled(read_results(folder))
    arms, summaries = results.settings.arms, results.summaries
    if len(arms) > len(COLOURS):
        raise ValueError(f"{folder} has {len(arms)} arms, and there are {len(COLOURS)} colours.")
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    low, high = range_of_interest(summaries)
    everything = True
    for arm, look in looks_of(arms).items():
        rows = sorted((row for row in summaries if row.arm == arm), key=lambda row: row.length)
        rows = [row for row in rows if row.metric is not None]
        costs = np.array([row.samples_forwarded / 1000 for row in rows])
        means = np.array([row.metric.mean for row in rows])
        half = [0.0 if row.metric.low is None else row.metric.mean - row.metric.low for row in rows]
        label = "all data, for fewer epochs" if arm == "full" else plain_name(arm)
        if not all(low <= mean <= high for mean in means):
            label, everything = f"{label} (partly off the figure)", False
        axis.errorbar(
            costs, means, half, color=COLOURS[look.number], marker=look.marker, ls=look.dash, capsize=2,
            lw=2.6 if arm == "full" else 1.4, label=label,
        )  # fmt: skip
    if not everything:
        axis.set_ylim(low, high)
    if not results.settings.higher_is_better:
        axis.invert_yaxis()  # up is better in every figure
    axis.set(xlabel="sample passes, thousands", ylabel=f"test {results.settings.metric}")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    _save(figure, picture, folder)


def draw_saving(folder: Path, picture: Path) -> None:
    """Draw all data and our rule alone, with an arrow from one curve to the other at equal quality."""
    results = labelled(read_results(folder))
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    curves = {}
    looks = looks_of(("full", "auto"))
    for arm, label in (("full", "all data, for fewer epochs"), ("auto", "auto")):
        rows = [row for row in results.summaries if row.arm == arm and row.metric]
        rows.sort(key=lambda row: row.length)
        costs = np.array([row.samples_forwarded / 1000 for row in rows])
        means = np.array([row.metric.mean for row in rows])
        colour = COLOURS[looks[arm].number]
        axis.plot(costs, means, color=colour, marker="o", lw=2.4, label=label)
        at_full = next(number for number, row in enumerate(rows) if row.length == 1)
        curves[label] = (costs, means, at_full)
    all_costs, all_means, _ = curves["all data, for fewer epochs"]
    costs, means, at_full = curves["auto"]
    # Where all data is as good as our rule at full length, by its own curve.
    needed = float(np.interp(means[at_full], all_means, all_costs))
    axis.annotate(
        "",
        (costs[at_full], means[at_full]),
        (needed, means[at_full]),
        arrowprops={"arrowstyle": "->", "lw": 2},
    )
    middle = (costs[at_full] + needed) / 2
    where = {"textcoords": "offset points", "ha": "center"}
    axis.annotate("equal accuracy", (middle, means[at_full]), (-10, -15), **where)
    axis.set(xlabel="sample passes, thousands", ylabel=f"test {results.settings.metric}")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    _save(figure, picture, folder)


def _save(figure: Any, picture: Path, folder: Path) -> None:
    picture.parent.mkdir(parents=True, exist_ok=True)
    temporary = picture.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110, metadata={"Source": _hash_of(folder)})
    plt.close(figure)
    temporary.replace(picture)


def range_of_interest(summaries: Sequence[Summary]) -> tuple[float, float]:
    """All data's range, widened by twice its size: a run that diverged would hide everything else."""
    means = [row.metric.mean for row in summaries if row.arm == "full" and row.metric]
    size = max(means) - min(means)
    return min(means) - 2 * size, max(means) + 2 * size


def _hash_of(folder: Path) -> str:
    files = (folder / "results.json", Path(__file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
