"""Means over seeds with their 95% t intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds; ``sd``, ``low`` and ``high`` are None where one seed is all there is."""

    count: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def t_interval(values: Sequence[float]) -> Interval | None:
    """The mean of some values with its two-sided 95% t interval; None for no values.

    >>> t_interval([1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Interval(count=3, mean=2.0, sd=1.0, low=-0.484..., high=4.484...)
    """
    count = len(values)
    if not count:
        return None
    mean = float(np.mean(values))
    if count == 1:
        return Interval(1, mean, None, None, None)
    sd = float(np.std(values, ddof=1))
    half = half_width(sd, count)
    return Interval(count, mean, sd, mean - half, mean + half)


def half_width(sd: float, count: int) -> float:
    """Half the 95% t interval of a mean of ``count`` values with this standard deviation."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * sd / math.sqrt(count)
