"""A saving in compute with its interval, and its format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from infobatch.lab.stats.crossing import Crossing

Bound = Literal["at least", "at most"]


@dataclass(frozen=True)
class Saving:
    """The share of compute that is saved; below zero, compute is wasted.

    ``bound`` says that the other curve ends before it reaches that quality, so that ``estimate`` is
    only a bound. ``low`` and ``high`` are None on an open side of the interval, and with one seed.
    """

    estimate: float
    bound: Bound | None
    low: float | None
    high: float | None
    confidence: float

    @property
    def text(self) -> str:
        """In words: ``34% (27–40%)``, ``at least 34% (27% or more)``, ``34%`` with one seed."""
        words = f"{self.bound} " if self.bound else ""
        words += percent(self.estimate)
        interval = self.interval
        # A certain bound needs no interval that repeats it.
        repeated = self.bound and interval.startswith(f"{percent(self.estimate)} or ")
        return f"{words} ({interval})" if interval and not repeated else words

    @property
    def interval(self) -> str:
        """The interval in words; empty if there is none."""
        if self.low is not None and self.high is not None:
            low, high = percent(self.low), percent(self.high)
            return f"{low} to {high}" if low.startswith("−") else f"{low[:-1]}–{high}"
        if self.low is not None:
            return f"{percent(self.low)} or more"
        return "" if self.high is None else f"{percent(self.high)} or less"


def percent(share: float) -> str:
    """A share as a whole percentage, with a true minus sign."""
    return f"{round(100 * share):d}%".replace("-", "−")


def saving_of_point(crossing: Crossing, *, confidence: float) -> Saving:
    """What the point saves against the curve: 1 - its cost / the curve's cost at equal quality."""
    bounds: dict[int, Bound | None] = {1: "at least", -1: "at most", 0: None}
    return Saving(
        _share(-crossing.estimate),
        bounds[crossing.beyond],
        _end(crossing.low, -1),
        _end(crossing.high, -1),
        confidence,
    )


def saving_of_curve(crossing: Crossing, *, confidence: float) -> Saving:
    """What the curve saves against the point: 1 - the curve's cost at equal quality / its cost."""
    bounds: dict[int, Bound | None] = {1: "at most", -1: "at least", 0: None}
    return Saving(
        _share(crossing.estimate),
        bounds[crossing.beyond],
        _end(crossing.high, 1),
        _end(crossing.low, 1),
        confidence,
    )


def _share(log_ratio: float) -> float:
    return -math.expm1(log_ratio)


def _end(log_ratio: float | None, sign: int) -> float | None:
    return None if log_ratio is None or math.isinf(log_ratio) else _share(sign * log_ratio)
