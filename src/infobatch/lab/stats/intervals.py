"""Means over seeds with their t intervals: how precise they are, and repeated looks at them."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CONFIDENCE = 0.95
FEWEST_SEEDS = 3  # two pairs can agree by chance, so nothing is concluded below three
USUAL_SEEDS = 5
MOST_SEEDS = 1000
SEQUENCES = 200_000
# How often an arm that is worse by the margin is called lossless if seeds are added as an undecided
# verdict suggests, or one by one: simulated from 3 and from 5 seeds on, up to 20 or 60.
ERROR_WITHOUT_DESIGN = "6–11%"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval. A difference is above zero if the first is better.

    ``sd``, ``low`` and ``high`` are None if there is only one seed.
    """

    count: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    confidence: float

    def in_words(self, digits: int, *, unit: str = "") -> str:
        """A difference with its interval: ``−0.12 (−0.40 to +0.16)``; with one seed, without."""
        words = f"{signed(self.mean, digits)} {unit}".rstrip()
        if self.low is not None and self.high is not None:
            words += f" ({signed(self.low, digits)} to {signed(self.high, digits)})"
        return words


def estimate(values: Sequence[float] | Array, *, confidence: float = CONFIDENCE) -> Estimate:
    """The mean of finite values, one per seed, with its two-sided t interval.

    >>> estimate([1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Estimate(count=3, mean=2.0, sd=1.0, low=-0.484..., high=4.484..., confidence=0.95)
    """
    count = len(values)
    if count == 0 or not np.isfinite(values).all():
        raise ValueError(
            f"estimate() got {list(values)!r}, expected at least one value, all finite. A run that "
            "diverged has none: report it instead of leaving it out."
        )
    mean = float(np.mean(values))
    if count == 1:
        return Estimate(1, mean, None, None, None, confidence)
    sd = float(np.std(values, ddof=1))
    half = half_width(sd, count, confidence=confidence)
    return Estimate(count, mean, sd, mean - half, mean + half, confidence)


def half_width(sd: float, count: int, *, confidence: float = CONFIDENCE) -> float:
    """Half the width of the t interval of a mean of ``count`` values with this ``sd``."""
    return t_quantile(confidence, count) * sd / math.sqrt(count)


def t_quantile(confidence: float, count: int) -> float:
    """The half-width of a two-sided interval of a mean of ``count`` values, in standard errors."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}, expected a share such as 0.95.")
    from scipy.special import stdtrit  # noqa: PLC0415 - the command line must start quickly

    return float(stdtrit(count - 1, (1 + confidence) / 2))


def signed(value: float, digits: int) -> str:
    """A number with its sign, using a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def decimals(margin: float) -> int:
    """How many decimals a metric needs if differences of this margin matter."""
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin is {margin!r}, expected a number above zero.")
    return max(0, 2 - math.ceil(math.log10(margin)))


# More seeds.


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


def more_seeds(difference: Estimate, *, limit: float) -> SeedRange:
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


def _more(difference: Estimate, distance: float, sd: float) -> int | None:
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


# Repeated looks.


@dataclass(frozen=True)
class SequentialDesign:
    """The looks that were declared in advance: after any number of seeds in this range.

    The usual 95% interval is for one look. If seeds are added until it clears the margin, an arm
    that is worse by the margin is called lossless in about 11% of all comparisons instead of 2.5%
    (with looks after 3, 4, …, 20 seeds). The remedy is the oldest one in group-sequential testing,
    Pocock's: the same, stricter interval at every look, strict enough that all looks together are
    wrong in 2.5%. For up to 20 seeds it is a t interval of about 99.2%. It allows for a look at
    every number of seeds from the first to the maximum; skipping some only makes it safer, so you
    may look whenever you like.

    An always-valid confidence sequence needs no maximum, but is wider: with a normal mixture over
    effect sizes by 7 to 27% from five to twenty seeds, and with three seeds it is unbounded unless
    the mixture is wide. On average, Pocock's rule needs about as many seeds as a comparison whose
    number of seeds was well chosen in advance.

    >>> round(SequentialDesign(most=20).confidence(), 3)
    0.992
    """

    most: int
    first: int = FEWEST_SEEDS

    def __post_init__(self) -> None:
        if not FEWEST_SEEDS <= self.first <= self.most:
            raise ValueError(
                f"SequentialDesign got first={self.first}, most={self.most}; "
                f"expected {FEWEST_SEEDS} <= first <= most."
            )

    def confidence(self, overall: float = CONFIDENCE) -> float:
        """The confidence of the t interval at each look that gives ``overall`` for all of them."""
        if not 0 < overall < 1:
            raise ValueError(f"overall is {overall!r}, expected a share such as 0.95.")
        return 1 - 2 * _level_per_look(self.first, self.most, (1 - overall) / 2)

    def check(self, count: int) -> None:
        """Raise an error if more seeds have been used than were declared."""
        if count > self.most:
            raise ValueError(
                f"There are {count} seeds, but the design was declared for at most {self.most}. "
                f"Judge the first {self.most}, or start again with a design that allows more."
            )


def _level_per_look(first: int, most: int, error: float) -> float:
    """The one-sided level of each look such that any look reaches it with probability ``error``.

    A t statistic does not depend on the mean or the deviation of the noise, so one simulation with
    standard normal noise holds for every comparison.
    """
    smallest = _smallest_p_values(first, most)
    # Two standard errors on the safe side, since the quantile is simulated.
    safe = error - 2 * np.sqrt(error * (1 - error) / SEQUENCES)
    return float(np.quantile(smallest, max(safe, 1 / SEQUENCES), method="lower"))


@functools.lru_cache(maxsize=8)
def _smallest_p_values(first: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    from scipy.special import stdtr  # noqa: PLC0415 - the command line must start quickly

    generator = np.random.default_rng(20)
    total, squares, smallest = np.zeros((3, SEQUENCES))
    smallest += 1
    for count in range(1, most + 1):
        drawn = generator.standard_normal(SEQUENCES)
        total += drawn
        squares += drawn**2
        if count >= first:
            variance = (squares - total**2 / count) / (count - 1)
            statistic = total / np.sqrt(count * variance)
            # Only the largest statistics can matter, and the distribution function is slow.
            large = np.flatnonzero(statistic > 0)
            smallest[large] = np.minimum(smallest[large], stdtr(count - 1, -statistic[large]))
    return smallest
