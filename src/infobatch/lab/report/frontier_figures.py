"""Figures of quality against cost, against full data, and against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullLocator

from infobatch.lab.compare.results import RateRun
from infobatch.lab.report.looks import Look, folded, shortened
from infobatch.lab.report.svg import ALARM, INK, MUTED, draw, hover
from infobatch.lab.stats.frontier import Frontier, Knot, quality_at
from infobatch.lab.stats.intervals import Estimate, decimals
from infobatch.lab.stats.rates import RateSummary
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, Summary

COSTS = {
    "samples_forwarded": "sample passes",
    "cpu_seconds": "processor seconds of training",
    "seconds": "seconds of training",
}


def quality_against_cost(
    summaries: Sequence[Summary],
    frontier: Frontier | None,
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
        if frontier and frontier.curve:
            _reference(axis, frontier.curve)
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


def _reference(axis: Axes, curve: Sequence[Knot]) -> None:
    """Full data's curve, from which savings are read: non-decreasing, linear in 1 / cost."""
    costs = np.geomspace(curve[0].cost, curve[-1].cost, 60)
    line = [quality_at(curve, cost) for cost in costs]
    axis.plot(costs, line, color=MUTED, lw=6, alpha=0.25, solid_capstyle="round", zorder=0)


def differences(
    frontier: Frontier | None, *, margin: float, unit: str, looks: Mapping[str, Look]
) -> Markup | None:
    """Each arm's difference from full data at full length, with its interval, and the margin."""
    points = frontier.points if frontier else ()
    to_full = {
        point.arm: point.to_full
        for point in points
        if point.length == FULL_LENGTH and point.to_full is not None
    }
    if not to_full:
        return None
    digits = decimals(margin)

    def description(arm: str, difference: Estimate) -> str:
        return f"{arm} {difference.in_words(digits)}"

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        axis.axvline(0, color=INK, lw=1)
        axis.axvline(-margin, color=ALARM, ls="--", lw=1.4, label="margin")
        for row, (arm, difference) in enumerate(to_full.items()):
            look = looks[arm]
            (mark,) = axis.plot(difference.mean, row, look.marker, color=look.colour, ms=7)
            hover(mark, description(arm, difference))
            if difference.low is not None and difference.high is not None:
                (bar,) = axis.plot(
                    [difference.low, difference.high], [row, row], color=look.colour, lw=2.4
                )
                hover(bar, description(arm, difference))
        axis.set_yticks(range(len(to_full)), [folded(arm) for arm in to_full])
        axis.set_ylim(len(to_full) - 0.5, -0.5)
        axis.set_xlabel(f"difference from full{f', {unit}' if unit else ''} (left is worse)")
        axis.grid(visible=False, axis="y")

    lines = sum(1 + arm.count(":") for arm in to_full)
    label = f"Difference from full data, where the margin is {margin:g}: "
    label += "; ".join(description(arm, difference) for arm, difference in to_full.items())
    return draw("differences", label, plot, height=110 + 18 * len(to_full) + 12 * lines)


def quality_against_rate(
    rates: Sequence[RateSummary],
    tried: Sequence[RateRun],
    *,
    metric: str,
    margin: float,
    looks: Mapping[str, Look],
) -> Markup | None:
    """Each arm's quality on validation splits with each rate: the mean, and every seed."""
    known = [row for row in rates if row.mean is not None]
    if not known:
        return None
    digits = decimals(margin)
    grid = sorted({row.learning_rate for row in rates})

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        arms = [arm for arm in looks if any(row.arm == arm for row in known)]
        for place, arm in enumerate(arms):
            look = looks[arm]
            shift = 1.03 ** (place - (len(arms) - 1) / 2)  # so that arms do not overlap
            rows = [row for row in known if row.arm == arm]
            axis.plot(
                [row.learning_rate * shift for row in rows], [row.mean for row in rows if row.mean is not None],
                **{**look.line(), "marker": ""}, label=arm,
            )  # fmt: skip
            for row in rows:
                x = row.learning_rate * shift
                _mark_rate(axis, x, row, _by_seed(tried, row), look=look, digits=digits)
        axis.set(xscale="log", xlabel="learning rate", ylabel=f"{shortened(metric)}, validation")
        axis.set_xticks(grid)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))

    chosen = (f"{row.arm} takes {row.learning_rate:g}" for row in rates if row.chosen)
    return draw(
        "rates", f"{metric} on the validation split by learning rate: {', '.join(chosen)}", plot
    )


def _mark_rate(
    axis: Axes, x: float, row: RateSummary, values: Sequence[float], *, look: Look, digits: int
) -> None:
    assert row.mean is not None
    text = f"{row.arm}, rate {row.learning_rate:g}: {row.mean:.{digits}f}"
    if len(values) > 1:
        text += f" ({', '.join(f'{value:.{digits}f}' for value in values)})"
        (bar,) = axis.plot([x, x], [min(values), max(values)], color=look.colour, lw=1.2, alpha=0.8)
        hover(bar, text)
    (mark,) = axis.plot(
        x, row.mean, look.marker, color=look.colour,
        ms=9 if row.chosen else 5, mfc=look.colour if row.chosen else "none",
    )  # fmt: skip
    hover(mark, text + (", chosen" if row.chosen else ""))


def _by_seed(tried: Sequence[RateRun], row: RateSummary) -> list[float]:
    """The single runs behind a mean, none of which diverged."""
    runs = [run for run in tried if (run.arm, run.learning_rate) == (row.arm, row.learning_rate)]
    return [run.metric for run in runs if run.metric is not None]
