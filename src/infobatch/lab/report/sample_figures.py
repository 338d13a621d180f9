"""Figures by sample: each is an inline SVG, or None if there is no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from infobatch.lab.report.details import Array, Details, Snapshot
from infobatch.lab.report.looks import Look, shortened
from infobatch.lab.report.svg import INK, MUTED, draw, hover
from infobatch.lab.run.arms import Arm

MOST_CLASSES = 24
BINS = 40


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

    pruned = len(before) - len(stages[1][1])
    label = f"Distribution of scores for {details.arm}: {pruned:,} of {len(before):,} samples are "
    label += "pruned, most of them with low scores, and rescaling restores the distribution"
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
    """How often each sample was visited, over all seeds; only for arms that prune."""
    by_arm: dict[str, list[Array]] = {}
    for detail in details:
        if Arm(detail.arm).prunes and detail.visits is not None and len(detail.visits):
            by_arm.setdefault(detail.arm, []).append(detail.visits)
    if not by_arm:
        return None
    pooled = {arm: np.concatenate(counts).astype(np.int64) for arm, counts in by_arm.items()}
    most = max(int(counts.max()) for counts in pooled.values())

    def plot(axes: list[Axes]) -> None:
        for axis, (arm, counts) in zip(axes, pooled.items(), strict=True):
            share = np.bincount(counts, minlength=most + 1) / len(counts)
            bars = axis.bar(np.arange(most + 1), share, width=0.85, color=looks[arm].colour)
            for count, bar in enumerate(bars):
                hover(bar, f"{arm}: {share[count]:.1%} of the samples were visited {count} times")
            axis.axvline(float(counts.mean()), color=INK, lw=1.2, ls="--")
            axis.set_title(arm, loc="left")
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axis.yaxis.set_major_locator(MaxNLocator(4))
        axes[-1].set_xlabel("visits of a sample during training")
        axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))

    means = (f"{counts.mean():.1f} times by {arm}" for arm, counts in pooled.items())
    label = f"How often samples were visited: on average {', '.join(means)}"
    return draw("visits", label, plot, height=90 + 100 * len(pooled), rows=len(pooled))


@dataclass(frozen=True)
class ClassShares:
    """The kept share of each class in one epoch of one arm."""

    arm: str
    epoch: int
    shares: Mapping[str, float]


def class_name(label: object, names: Sequence[str]) -> str:
    """A class by name, if the task has class names."""
    number = label.item() if isinstance(label, np.generic) else label
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else str(label)


def class_shares(details: Details, names: Sequence[str] = ()) -> ClassShares | None:
    """The share of each class that the snapshot's plan keeps."""
    snapshot, labels = details.snapshot, details.labels
    if snapshot is None or labels is None or not len(labels):
        return None
    classes, members = np.unique(labels, return_inverse=True)
    sizes = np.bincount(members, minlength=len(classes))
    kept = np.bincount(members[snapshot.order], minlength=len(classes))
    shares = {
        class_name(label, names): float(k / n)
        for label, k, n in zip(classes, kept, sizes, strict=True)
    }
    return ClassShares(details.arm, snapshot.epoch, shares)


def kept_by_class(
    shares_by_arm: Sequence[ClassShares], *, looks: Mapping[str, Look]
) -> Markup | None:
    """The kept share of each class, by arm; with many classes, only the extremes."""
    if not shares_by_arm:
        return None
    ranked = sorted(shares_by_arm[0].shares, key=lambda name: shares_by_arm[0].shares[name])
    if len(ranked) > MOST_CLASSES:
        ranked = ranked[: MOST_CLASSES // 2] + ranked[-MOST_CLASSES // 2 :]

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for detail in shares_by_arm:
            look = looks[detail.arm]
            for row, name in enumerate(ranked):
                share = detail.shares.get(name, np.nan)
                (mark,) = axis.plot(
                    share, row, look.marker, color=look.colour, ms=6,
                    label=None if row else detail.arm,
                )  # fmt: skip
                hover(mark, f"{detail.arm} keeps {share:.0%} of {name}")
        axis.set_yticks(range(len(ranked)), [shortened(name, 18) for name in ranked])
        axis.set_ylim(len(ranked) - 0.5, -0.5)
        axis.set_xlim(0, 1.03)
        axis.xaxis.set_major_formatter(PercentFormatter(1))
        axis.set(xlabel="kept share of the class", ylabel="class")

    shares = shares_by_arm[0].shares
    label = f"The share of each class that one pruned epoch keeps: {shares_by_arm[0].arm} keeps the least of "
    label += f"{ranked[0]}, {shares[ranked[0]]:.0%}, and the most of {ranked[-1]}, "
    label += f"{shares[ranked[-1]]:.0%}"
    return draw("classes", label, plot, height=100 + 19 * len(ranked))


def _id(arm: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in arm)
