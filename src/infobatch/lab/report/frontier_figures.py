"""Figures of quality against cost, against full data, and against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullLocator

from infobatch.lab.report.looks import Look, Record, folded, shortened
from infobatch.lab.report.svg import ALARM, INK, MUTED, draw, hover
from infobatch.lab.stats.outcome import decimals
from infobatch.lab.stats.records import FULL, FULL_LENGTH
from infobatch.lab.stats.summary import Summary

COSTS = {
    "samples_forwarded": "sample passes",
    "cpu_seconds": "processor seconds of training",
    "seconds": "seconds of training",
}


def quality_against_cost(
    summaries: Sequence[Summary],
    frontier: Record | None,
    *,
    cost: str,
    metric: str,
    margin: float,
    looks: Mapping[str, Look],
) -> Markup | None:
    """A line per arm through its lengths, with intervals, and full data's curve as the reference."""
    known = [summary for summary in summaries if summary.metric is not None]
    if not known:
        return None
    digits = decimals(margin)

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for arm, look in looks.items():
            points = sorted(
                (point for point in known if point.arm == arm), key=lambda point: point.length
            )
            if not points:
                continue
            width = 2.6 if arm == FULL else 1.4
            axis.plot(
                [getattr(point, cost) for point in points],
                [point.metric.mean for point in points if point.metric],
                **{**look.line(), "marker": ""}, lw=width, alpha=0.7,
            )  # fmt: skip
            for number, point in enumerate(points):
                _mark(axis, point, look, cost, digits, label=None if number else arm)
        if frontier and frontier["curve"]:
            _reference(axis, frontier["curve"])
        axis.set(xlabel=COSTS[cost], ylabel=shortened(metric))
        if cost == "samples_forwarded":
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.margins(0.06)

    descriptions = (
        f"{point.arm} at length {point.length:g} {point.metric.mean:.{digits}f} for "
        f"{getattr(point, cost):,.0f} {COSTS[cost]}"
        for point in known
        if point.metric
    )
    return draw(
        f"cost-{cost}",
        f"{metric} against {COSTS[cost]}: {'; '.join(descriptions)}",
        plot,
        height=290,
    )


def _mark(
    axis: Axes, point: Summary, look: Look, cost: str, digits: int, *, label: str | None
) -> None:
    assert point.metric is not None
    x, mean = getattr(point, cost), point.metric
    description = (
        f"{point.arm}, length {point.length:g}: {mean.mean:.{digits}f} for {x:,.0f} {COSTS[cost]}"
    )
    if mean.low is not None and mean.high is not None:
        (bar,) = axis.plot([x, x], [mean.low, mean.high], color=look.colour, lw=1.6)
        description += f" ({mean.low:.{digits}f} to {mean.high:.{digits}f}, {mean.count} seeds)"
        hover(bar, description)
    (mark,) = axis.plot(x, mean.mean, look.marker, color=look.colour, ms=7, label=label)
    hover(mark, description)


def _reference(axis: Axes, curve: Sequence[Record]) -> None:
    """Full data's curve, from which savings are read: non-decreasing, linear in 1 / cost."""
    costs = np.array([knot["cost"] for knot in curve])
    fitted = np.array([knot["fitted"] for knot in curve])
    dense = np.geomspace(costs[0], costs[-1], 60)
    line = np.interp(-1 / dense, -1 / costs, fitted)
    axis.plot(dense, line, color=MUTED, lw=6, alpha=0.25, solid_capstyle="round", zorder=0)


def differences(
    points: Sequence[Record], *, margin: float, unit: str, looks: Mapping[str, Look]
) -> Markup | None:
    """Each arm's difference from full data at full length, with its interval, and the margin."""
    known = [point for point in points if point["to_full"] is not None]
    if not known:
        return None
    digits = decimals(margin)

    def description(point: Record) -> str:
        difference = point["to_full"]
        text = f"{point['arm']} {difference['mean']:+.{digits}f}"
        if difference["low"] is not None:
            text += f" ({difference['low']:+.{digits}f} to {difference['high']:+.{digits}f})"
        return text.replace("-", "−")

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        axis.axvline(0, color=INK, lw=1)
        axis.axvline(-margin, color=ALARM, ls="--", lw=1.4, label="margin")
        for row, point in enumerate(known):
            look, difference = looks[point["arm"]], point["to_full"]
            (mark,) = axis.plot(difference["mean"], row, look.marker, color=look.colour, ms=7)
            hover(mark, description(point))
            if difference["low"] is not None:
                (bar,) = axis.plot(
                    [difference["low"], difference["high"]], [row, row], color=look.colour, lw=2.4
                )
                hover(bar, description(point))
        axis.set_yticks(range(len(known)), [folded(point["arm"]) for point in known])
        axis.set_ylim(len(known) - 0.5, -0.5)
        axis.set_xlabel(f"difference from full{f', {unit}' if unit else ''} (left is worse)")
        axis.grid(visible=False, axis="y")

    lines = sum(1 + point["arm"].count(":") for point in known)
    label = f"Difference from full data, where the margin is {margin:g}: "
    label += "; ".join(description(point) for point in known)
    return draw("differences", label, plot, height=110 + 18 * len(known) + 12 * lines)


def quality_against_rate(
    rates: Sequence[Record],
    tried: Sequence[Record],
    *,
    metric: str,
    margin: float,
    looks: Mapping[str, Look],
) -> Markup | None:
    """Each arm's quality on validation splits with each rate: the mean, and every seed."""
    known = [row for row in rates if row["mean"] is not None]
    if not known:
        return None
    digits = decimals(margin)
    grid = sorted({row["learning_rate"] for row in rates})

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        arms = [arm for arm in looks if any(row["arm"] == arm for row in known)]
        for place, arm in enumerate(arms):
            look = looks[arm]
            beside = 1.03 ** (place - (len(arms) - 1) / 2)  # so that arms do not overlap
            rows = [row for row in known if row["arm"] == arm]
            axis.plot(
                [row["learning_rate"] * beside for row in rows], [row["mean"] for row in rows],
                **{**look.line(), "marker": ""}, label=arm,
            )  # fmt: skip
            for row in rows:
                x = row["learning_rate"] * beside
                _mark_rate(axis, x, row, _by_seed(tried, row), look=look, digits=digits)
        axis.set(xscale="log", xlabel="learning rate", ylabel=f"{shortened(metric)}, validation")
        axis.set_xticks(grid)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))

    chosen = (f"{row['arm']} takes {row['learning_rate']:g}" for row in rates if row["chosen"])
    return draw(
        "rates", f"{metric} on the validation split by learning rate: {', '.join(chosen)}", plot
    )


def _mark_rate(
    axis: Axes, x: float, row: Record, values: Sequence[float], *, look: Look, digits: int
) -> None:
    text = f"{row['arm']}, rate {row['learning_rate']:g}: {row['mean']:.{digits}f}"
    if len(values) > 1:
        text += f" ({', '.join(f'{value:.{digits}f}' for value in values)})"
        (bar,) = axis.plot([x, x], [min(values), max(values)], color=look.colour, lw=1.2, alpha=0.8)
        hover(bar, text)
    (mark,) = axis.plot(
        x, row["mean"], look.marker, color=look.colour,
        ms=9 if row["chosen"] else 5, mfc=look.colour if row["chosen"] else "none",
    )  # fmt: skip
    hover(mark, text + (", chosen" if row["chosen"] else ""))


def _by_seed(tried: Sequence[Record], row: Record) -> list[float]:
    """The single runs behind a mean."""
    same = [run for run in tried if run["arm"] == row["arm"]]
    return [run["metric"] for run in same if run["learning_rate"] == row["learning_rate"]]


def points_at_full_length(frontier: Record | None) -> list[Any]:
    """The frontier's points at full length."""
    points = frontier["points"] if frontier else []
    return [point for point in points if point["length"] == FULL_LENGTH]
