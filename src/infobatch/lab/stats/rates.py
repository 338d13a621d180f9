"""The choice of an arm's learning rate from the results of a grid.

The best mean wins, but the differences between good rates are often noise, and following noise
means comparing lucky choices with unlucky ones. Rates within one standard error of the best (of the
difference, paired by seed) therefore count as tied, and every arm resolves a tie in the same way:
the task's own rate if it is among them, else the one nearest to the middle of the grid. A task's own
rate at an end of the grid breaks no tie: what lies beyond it was not tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RateSummary:
    """An arm's result with one rate of the grid, over the seeds used for the choice.

    ``mean`` is in the metric's own unit, or None if some seed diverged, in which case the rate is
    not chosen. ``behind`` is how much worse it is than the best rate, with its ``standard_error``,
    which takes two seeds; ``tied`` means that it is not behind by more than that.
    """

    arm: str
    learning_rate: float
    count: int
    mean: float | None
    sd: float | None
    behind: float | None
    standard_error: float | None
    tied: bool
    chosen: bool


def summarise_rates(
    metrics: Mapping[float, Sequence[float | None]],
    *,
    arm: str,
    higher_is_better: bool,
    usual: float,
) -> tuple[RateSummary, ...]:
    """Summarise an arm's rates of a grid, each with one metric per seed, None where it diverged.

    ``usual`` is the task's own learning rate. If every rate diverged, all are tied.

    >>> grid = {0.1: [88.0, 88.2], 0.2: [88.0, 88.1], 0.4: [88.3, 88.1]}
    >>> rates = summarise_rates(grid, arm="full", higher_is_better=True, usual=0.2)
    >>> [rate.learning_rate for rate in rates if rate.chosen]
    [0.2]
    """
    sign = 1.0 if higher_is_better else -1.0
    qualities = {
        rate: sign * np.array([math.nan if value is None else value for value in metrics[rate]])
        for rate in sorted(metrics)
    }
    finite = {rate: values for rate, values in qualities.items() if np.isfinite(values).all()}
    best = max(finite.values(), key=np.mean, default=np.zeros(0))
    behind = {rate: _behind(best, values) for rate, values in finite.items()}
    tied = {rate for rate, (gap, error) in behind.items() if _within(gap, error)} or set(metrics)
    chosen = _resolved({rate: behind.get(rate, (0.0, None))[0] for rate in tied}, metrics, usual)
    summaries = []
    for rate, values in qualities.items():
        gap, error = behind.get(rate, (None, None))
        summaries.append(
            RateSummary(
                arm=arm,
                learning_rate=rate,
                count=len(values),
                mean=sign * float(values.mean()) if rate in finite else None,
                sd=float(values.std(ddof=1)) if rate in finite and len(values) > 1 else None,
                behind=gap,
                standard_error=error,
                tied=rate in tied,
                chosen=rate == chosen,
            )
        )
    return tuple(summaries)


def _behind(
    best: np.ndarray[tuple[int], np.dtype[np.float64]],
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> tuple[float, float | None]:
    differences = best - values
    count = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    return float(differences.mean()), error


def _within(gap: float, error: float | None) -> bool:
    """Whether a gap is at most its error; with two seeds, one equal, both are the same number."""
    return gap <= (error or 0.0) * (1 + 1e-9)


def _resolved(tied: Mapping[float, float], grid: Mapping[float, object], usual: float) -> float:
    """The usual rate inside the grid, else the one nearest to its middle by ratio; of two, the better.

    ``tied`` maps each rate to how far it is behind the best.
    """
    if usual in tied and min(grid) < usual < max(grid):
        return usual
    middle = math.sqrt(min(grid) * max(grid))

    def distance(rate: float) -> float:
        # Rounded, so that two equally near rates remain equal.
        return round(abs(math.log(rate / middle)), 9)

    return min(sorted(tied), key=lambda rate: (distance(rate), tied[rate]))
