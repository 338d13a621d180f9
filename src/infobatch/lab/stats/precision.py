"""The precision of a comparison: the effect of more seeds, and the test set's resolution."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from infobatch.lab.stats.contrast import FEWEST_SEEDS, USUAL_SEEDS, Contrast, half_width

MOST_SEEDS = 1000


@dataclass(frozen=True)
class SeedRange:
    """Roughly how many more seeds are needed; ``high`` is None beyond a thousand."""

    low: int
    high: int | None

    @property
    def text(self) -> str:
        """In words: ``about 4 to 12 more seeds``."""
        if self.low >= MOST_SEEDS:
            return f"more than {MOST_SEEDS:,} more seeds"
        if self.high is None:
            return f"{self.low} or many more seeds"
        if self.low == self.high:
            return f"about {self.low} more {'seed' if self.low == 1 else 'seeds'}"
        return f"about {self.low} to {self.high} more seeds"


def more_seeds(difference: Contrast, *, limit: float) -> SeedRange:
    """How many more seeds until the interval of ``difference`` no longer contains ``limit``.

    If the mean does not change, this depends on how much seeds differ, which a few seeds show only
    poorly: the range is for a standard deviation from the lower to the upper quartile of what is
    plausible, so that the truth is as likely within it as not. One seed says nothing about the
    deviation; the range is then what makes three seeds, the minimum, to five, the usual number.
    """
    if difference.sd is None:
        return SeedRange(FEWEST_SEEDS - difference.count, USUAL_SEEDS - difference.count)
    from scipy.special import gammaincinv  # noqa: PLC0415 - the command line must start quickly

    freedom = difference.count - 1
    low, high = (
        _more(difference, abs(difference.mean - limit), difference.sd * math.sqrt(freedom / square))
        for square in (2 * float(gammaincinv(freedom / 2, share)) for share in (0.75, 0.25))
    )
    return SeedRange(MOST_SEEDS if low is None else low, high)


def _more(difference: Contrast, distance: float, sd: float) -> int | None:
    def decided(extra: int) -> bool:
        count = difference.count + extra
        return half_width(sd, count, confidence=difference.confidence) < distance

    extras = range(max(1, FEWEST_SEEDS - difference.count), MOST_SEEDS)
    place = bisect.bisect_left(extras, True, key=decided)
    if place == len(extras):
        return None
    unit: int = 10 ** max(0, len(str(extras[place])) - 2)  # at most two digits are meaningful
    return -(-extras[place] // unit) * unit


def binomial_standard_error(percentage: float, items: int) -> float:
    """The standard error, in points, of a metric that is a percentage of ``items`` test items.

    It says how far the metric may be off because the test set is a sample. An interval over seeds
    does not include it, because every seed is evaluated on the same items.

    >>> round(binomial_standard_error(90.0, 10_000), 2)
    0.3
    """
    if items < 1:
        raise ValueError(f"items is {items!r}, expected at least one test item.")
    if not 0 <= percentage <= 100:
        raise ValueError(f"percentage is {percentage!r}, expected a number from 0 to 100.")
    share = percentage / 100
    return 100 * math.sqrt(share * (1 - share) / items)
