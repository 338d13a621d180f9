"""The report's figures: each takes plain data and returns an inline SVG, or None where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

from infobatch.lab.arms import FULL, Arm
from infobatch.lab.details import Array, Details, Snapshot
from infobatch.lab.summary import ArmSummary, finite
from infobatch.lab.svg import ALARM, COLOURS, DASHES, INK, MARKERS, MUTED, draw
from infobatch.lab.verdict import Verdict

MOST_CLASSES = 24
BINS = 40
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """How an arm is drawn, the same in every figure."""

    colour: str
    marker: str
    dash: Any

    def line(self) -> dict[str, Any]:
        """Arguments of a plotted line."""
        return {"color": self.colour, "marker": self.marker, "ls": self.dash, "ms": 4}


def looks_of(arms: Sequence[str]) -> dict[str, Look]:
    """Colours, markers and dashes by arm."""
    return {
        arm: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, arm in enumerate(arms)
    }


def shortened(text: str, length: int = 28) -> str:
    """A user's text on one line, short enough for an axis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


# The verdict and the cost.


def differences(verdicts: Sequence[Verdict], *, looks: Mapping[str, Look]) -> Markup | None:
    """The differences to full with their intervals, and the margin."""
    known = [
        (verdict, difference)
        for verdict in verdicts
        if (difference := verdict.difference_to(FULL)) is not None and difference.mean is not None
    ]
    if not known:
        return None

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        axis.axvline(0, color=INK, lw=1)
        axis.axvline(-known[0][0].margin, color=ALARM, ls="--", lw=1.4, label="margin")
        for row, (verdict, difference) in enumerate(known):
            look = looks[verdict.arm]
            assert difference.mean is not None
            axis.plot(difference.mean, row, look.marker, color=look.colour, ms=7)
            if difference.low is not None and difference.high is not None:
                axis.plot([difference.low, difference.high], [row, row], color=look.colour, lw=2.4)
        axis.set_yticks(range(len(known)), [shortened(verdict.arm, 14) for verdict, _ in known])
        axis.set_ylim(len(known) - 0.5, -0.5)
        axis.set_xlabel("difference to full (left is worse)")
        axis.grid(visible=False, axis="y")

    label = "Difference of each arm to full, with its 95% interval, against the margin"
    return draw("differences", label, plot, height=110 + 30 * len(known))


def against_cost(
    runs: Sequence[Record],
    summaries: Sequence[ArmSummary],
    *,
    cost: str,
    cost_label: str,
    metric: str,
    looks: Mapping[str, Look],
) -> Markup | None:
    """The metric against a cost: means with 95% intervals, and each run as a faint dot."""
    known = [summary for summary in summaries if summary.metric is not None]
    if not known:
        return None

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for summary in known:
            look = looks[summary.arm]
            own = [run for run in runs if run["arm"] == summary.arm and finite(run["metric"])]
            axis.scatter(
                [run["costs"][cost] for run in own],
                [run["metric"] for run in own],
                s=16, color=look.colour, alpha=0.45, linewidths=0,
            )  # fmt: skip
            mean_cost, mean = getattr(summary, cost), summary.metric
            assert mean is not None
            if mean.low is not None and mean.high is not None:
                axis.plot([mean_cost] * 2, [mean.low, mean.high], color=look.colour, lw=2)
            axis.plot(
                mean_cost, mean.mean, look.marker, color=look.colour, ms=8,
                label=shortened(summary.arm, 14),
            )  # fmt: skip
        axis.set(xlabel=cost_label, ylabel=shortened(metric))
        if cost != "seconds":
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.margins(0.1)

    label = f"{metric} of each arm against {cost_label}, with 95% intervals over seeds"
    return draw(f"cost-{cost}", label, plot)


# By epoch.


def by_epoch(
    runs: Sequence[Record],
    value: Callable[[Record], Any],
    *,
    name: str,
    ylabel: str,
    looks: Mapping[str, Look],
    against_samples: bool = False,
    percent: bool = False,
) -> Markup | None:
    """A number of the histories: the mean over seeds, and a band from the least to the most."""
    curves = {
        arm: curve
        for arm in looks
        if (curve := _curve([run for run in runs if run["arm"] == arm], value)) is not None
    }
    if not curves:
        return None

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for arm, (epochs, samples, values) in curves.items():
            x = samples if against_samples else epochs
            every = max(1, len(x) // 8)
            axis.plot(
                x, np.nanmean(values, 0), **looks[arm].line(),
                markevery=every, label=shortened(arm, 14),
            )  # fmt: skip
            axis.fill_between(
                x, np.nanmin(values, 0), np.nanmax(values, 0),
                color=looks[arm].colour, alpha=0.15, linewidth=0,
            )  # fmt: skip
        axis.set(xlabel="sample passes" if against_samples else "epoch", ylabel=shortened(ylabel))
        if against_samples:
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if percent:
            axis.set_ylim(0, 1.05)
            axis.yaxis.set_major_formatter(PercentFormatter(1))

    label = f"{ylabel} by {'sample passes' if against_samples else 'epoch'}, for each arm"
    return draw(name, label, plot)


def _curve(
    runs: Sequence[Record], value: Callable[[Record], Any]
) -> tuple[Array, Array, Array] | None:
    """Epochs, mean sample passes up to then, and the values (runs × epochs) where any is finite."""
    length = max((len(run["history"]) for run in runs), default=0)
    values = np.full((len(runs), length), np.nan)
    samples = np.full((len(runs), length), np.nan)
    for row, run in enumerate(runs):
        passes = 0
        for column, entry in enumerate(run["history"]):
            found = value(entry)
            passes += entry["samples"]
            samples[row, column] = passes
            values[row, column] = found if finite(found) else np.nan
    known = np.isfinite(values).any(0) if len(runs) else np.zeros(0, bool)
    if not known.any():
        return None
    epochs = np.arange(1, length + 1)[known]
    return epochs, np.nanmean(samples[:, known], 0), values[:, known]


def learning_curves(
    runs: Sequence[Record], *, metric: str, looks: Mapping[str, Look]
) -> list[Markup]:
    """Metric and training loss, by epoch and by sample passes."""
    drawn = [
        by_epoch(
            runs, itemgetter(key), name=f"{key}-{against_samples:d}",
            ylabel=ylabel, looks=looks, against_samples=against_samples,
        )
        for key, ylabel in (("metric", metric), ("train_loss", "training loss"))
        for against_samples in (False, True)
    ]  # fmt: skip
    return [figure for figure in drawn if figure is not None]


def kept_fraction(runs: Sequence[Record], *, looks: Mapping[str, Look]) -> Markup | None:
    """The share of the data that each epoch's plan keeps."""
    return by_epoch(
        runs,
        lambda entry: entry.get("kept_fraction"),
        name="kept",
        ylabel="kept share of the data",
        looks=looks,
        percent=True,
    )


def threshold(runs: Sequence[Record], *, looks: Mapping[str, Look]) -> Markup | None:
    """The score below which samples may be pruned; the highest where a rule has several."""
    return by_epoch(
        runs,
        lambda entry: max(entry.get("thresholds") or [], default=None),
        name="threshold",
        ylabel="threshold (score)",
        looks=looks,
    )


# By sample.


def loss_distribution(details: Details, *, look: Look) -> Markup | None:
    """Scores before pruning, after pruning and after rescaling: the paper's Figure 6."""
    snapshot = details.snapshot
    if snapshot is None or not np.isfinite(snapshot.scores).any():
        return None
    stages = _stages(snapshot)
    before = stages[0][1]
    low, high = float(before.min()), float(np.quantile(before, 0.99))
    bins = np.linspace(low, high if high > low else low + 1, BINS + 1)
    mean = float(before.mean())

    def plot(axes: list[Axes]) -> None:
        outline, _ = np.histogram(np.clip(before, bins[0], bins[-1]), bins)
        for axis, (title, scores, weights) in zip(axes, stages, strict=True):
            counts, _ = np.histogram(np.clip(scores, bins[0], bins[-1]), bins, weights=weights)
            axis.stairs(counts, bins, fill=True, color=look.colour, alpha=0.7)
            axis.stairs(outline, bins, color=MUTED, lw=1)
            axis.axvline(mean, color=INK, lw=1.2, ls="--")
            axis.set_title(title, loc="left")
            axis.set(yscale="log", ylim=(0.6, None), ylabel="samples")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
            axis.minorticks_off()
        axes[-1].set_xlabel(f"score at the start of epoch {snapshot.epoch + 1}")

    label = f"Distribution of scores for {details.arm} before pruning, after it and after rescaling"
    return draw(f"losses-{_id(details.arm)}", label, plot, height=380, rows=3)


def _stages(snapshot: Snapshot) -> tuple[tuple[str, Array, Array | None], ...]:
    kept = snapshot.scores[snapshot.order]
    seen = np.isfinite(kept)
    before = snapshot.scores[np.isfinite(snapshot.scores)]
    return (
        ("before pruning", before, None),
        ("after pruning", kept[seen], None),
        ("after rescaling", kept[seen], snapshot.weights[seen]),
    )


def visits(details: Sequence[Details], *, looks: Mapping[str, Look]) -> Markup | None:
    """How often each sample was visited, all seeds together; only for arms that prune."""
    by_arm: dict[str, list[Array]] = {}
    for one in details:
        if Arm(one.arm).prunes and one.visits is not None and len(one.visits):
            by_arm.setdefault(one.arm, []).append(one.visits)
    if not by_arm:
        return None
    pooled = {arm: np.concatenate(own).astype(np.int64) for arm, own in by_arm.items()}
    most = max(int(own.max()) for own in pooled.values())

    def plot(axes: list[Axes]) -> None:
        for axis, (arm, own) in zip(axes, pooled.items(), strict=True):
            share = np.bincount(own, minlength=most + 1) / len(own)
            axis.bar(np.arange(most + 1), share, width=0.85, color=looks[arm].colour)
            axis.axvline(float(own.mean()), color=INK, lw=1.2, ls="--")
            axis.set_title(shortened(arm), loc="left")
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axis.yaxis.set_major_locator(MaxNLocator(4))
        axes[-1].set_xlabel("visits of a sample in the whole training")
        axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))

    label = "How often samples were visited, for each arm that prunes"
    return draw("visits", label, plot, height=90 + 100 * len(pooled), rows=len(pooled))


@dataclass(frozen=True)
class ClassShares:
    """The kept share of each class in one epoch of one arm."""

    arm: str
    epoch: int
    shares: Mapping[str, float]


def class_shares(details: Details) -> ClassShares | None:
    """Which share of each class the snapshot's plan keeps."""
    snapshot, labels = details.snapshot, details.labels
    if snapshot is None or labels is None or not len(labels):
        return None
    classes, members = np.unique(labels, return_inverse=True)
    sizes = np.bincount(members, minlength=len(classes))
    kept = np.bincount(members[snapshot.order], minlength=len(classes))
    shares = {str(name): float(k / n) for name, k, n in zip(classes, kept, sizes, strict=True)}
    return ClassShares(details.arm, snapshot.epoch, shares)


def kept_by_class(found: Sequence[ClassShares], *, looks: Mapping[str, Look]) -> Markup | None:
    """The kept share of each class, by arm; of many classes those at both ends."""
    if not found:
        return None
    ranked = sorted(found[0].shares, key=lambda name: found[0].shares[name])
    if len(ranked) > MOST_CLASSES:
        ranked = ranked[: MOST_CLASSES // 2] + ranked[-MOST_CLASSES // 2 :]

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for one in found:
            look = looks[one.arm]
            axis.plot(
                [one.shares.get(name, np.nan) for name in ranked], range(len(ranked)), look.marker,
                color=look.colour, ms=6, label=shortened(one.arm, 14),
            )  # fmt: skip
        axis.set_yticks(range(len(ranked)), [shortened(name, 18) for name in ranked])
        axis.set_ylim(len(ranked) - 0.5, -0.5)
        axis.set_xlim(0, 1.03)
        axis.xaxis.set_major_formatter(PercentFormatter(1))
        axis.set(xlabel="kept share of the class", ylabel="class")

    label = "The share of each class that one pruned epoch keeps, for each arm that prunes"
    return draw("classes", label, plot, height=100 + 19 * len(ranked))


def _id(arm: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in arm)
