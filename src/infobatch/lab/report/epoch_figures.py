"""Figures by epoch: each is an inline SVG, or None if there is no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from infobatch.forecast import Forecast, epoch_saving, percent
from infobatch.lab.report.details import Array
from infobatch.lab.report.looks import Look, shortened
from infobatch.lab.report.svg import INK, draw, hover
from infobatch.lab.stats.runs import Epoch, Record


def by_epoch(
    runs: Sequence[Record],
    value: Callable[[Epoch], float | None],
    *,
    name: str,
    ylabel: str,
    looks: Mapping[str, Look],
    against_samples: bool = False,
    percent: bool = False,
) -> Markup | None:
    """A value of the histories: the mean over seeds, and a band from minimum to maximum."""
    curves = {
        arm: curve
        for arm in looks
        if (curve := _curve([run for run in runs if run.arm == arm], value)) is not None
    }
    if not curves:
        return None

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for arm, (epochs, samples, values) in curves.items():
            x = samples if against_samples else epochs
            every = max(1, len(x) // 8)
            means = np.nanmean(values, 0)
            (line,) = axis.plot(x, means, **looks[arm].line(), markevery=every, label=arm)
            hover(line, f"{arm}: {means[-1]:.4g} at the end")
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

    ends = (f"{arm} ends at {np.nanmean(curve[2], 0)[-1]:.4g}" for arm, curve in curves.items())
    label = f"{ylabel} by {'sample passes' if against_samples else 'epoch'}: {', '.join(ends)}"
    return draw(name, label, plot)


def _curve(
    runs: Sequence[Record], value: Callable[[Epoch], float | None]
) -> tuple[Array, Array, Array] | None:
    """Epochs, mean sample passes up to then, and values (runs × epochs) where any is finite."""
    length = max((len(run.history) for run in runs), default=0)
    values = np.full((len(runs), length), np.nan)
    samples = np.full((len(runs), length), np.nan)
    for row, run in enumerate(runs):
        passes = 0
        for column, epoch in enumerate(run.history):
            number = value(epoch)
            passes += epoch.samples
            samples[row, column] = passes
            values[row, column] = np.nan if number is None else number
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
            runs, attrgetter(name), name=f"{name}-{against_samples:d}",
            ylabel=ylabel, looks=looks, against_samples=against_samples,
        )
        for name, ylabel in (("metric", metric), ("train_loss", "training loss"))
        for against_samples in (False, True)
    ]  # fmt: skip
    return [figure for figure in drawn if figure is not None]


def kept_fraction(runs: Sequence[Record], *, looks: Mapping[str, Look]) -> Markup | None:
    """The share of the data that each epoch's plan keeps."""
    return by_epoch(
        runs,
        lambda epoch: epoch.kept_fraction,
        name="kept",
        ylabel="kept share of the data",
        looks=looks,
        percent=True,
    )


def threshold(runs: Sequence[Record], *, looks: Mapping[str, Look]) -> Markup | None:
    """The score below which samples may be pruned; the highest if a rule has several."""
    return by_epoch(
        runs,
        lambda epoch: max(epoch.thresholds, default=None),
        name="threshold",
        ylabel="threshold (score)",
        looks=looks,
    )


def forecast(known: Forecast | None, *, looks: Mapping[str, Look]) -> Markup | None:
    """What each epoch would save at equal quality, followed on all data."""
    rules = {} if known is None else known.rules
    shown = {arm: rule for arm, rule in rules.items() if arm in looks and not rule.biased}
    if not shown:
        return None

    def plot(axes: list[Axes]) -> None:
        axis = axes[0]
        for arm, rule in shown.items():
            x = [epoch.epoch + 1 for epoch in rule.epochs]
            realised = [epoch_saving(epoch) for epoch in rule.epochs]
            promised = [epoch_saving(epoch, promised=True) for epoch in rule.epochs]
            look = looks[arm]
            every = max(1, len(x) // 8)
            (line,) = axis.plot(x, realised, **look.line(), markevery=every, label=arm)
            hover(line, f"{arm}: {percent(rule.saving)} over all epochs")
            axis.plot(x, promised, color=look.colour, ls=":", lw=1)
        axis.axhline(0, color=INK, lw=1)
        axis.set(xlabel="epoch", ylabel="forecast saving")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_formatter(PercentFormatter(1))

    words = (f"{arm} {percent(rule.saving)}" for arm, rule in shown.items())
    return draw("forecast", f"Forecast saving at equal quality by epoch: {', '.join(words)}", plot)
