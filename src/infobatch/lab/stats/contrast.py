"""Differences in quality, paired by seed, with their t intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CONFIDENCE = 0.95
FEWEST_SEEDS = 3  # two pairs can agree by chance, so no decision is made below three
USUAL_SEEDS = 5


@dataclass(frozen=True)
class Contrast:
    """A mean difference over paired seeds; above zero, the first of the two is better.

    ``sd``, ``low`` and ``high`` are None if there is only one seed.
    """

    count: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    confidence: float


def contrast(differences: Sequence[float] | Array, *, confidence: float = CONFIDENCE) -> Contrast:
    """The mean of finite differences, one value per seed, with its two-sided t interval.

    >>> contrast([1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Contrast(count=3, mean=2.0, sd=1.0, low=-0.484..., high=4.484..., confidence=0.95)
    """
    count = len(differences)
    if count == 0 or not np.isfinite(differences).all():
        raise ValueError(
            f"contrast() got {list(differences)!r}, expected at least one difference, all finite. "
            "A run that diverged has none: report it instead of leaving it out."
        )
    mean = float(np.mean(differences))
    if count == 1:
        return Contrast(1, mean, None, None, None, confidence)
    sd = float(np.std(differences, ddof=1))
    half = half_width(sd, count, confidence=confidence)
    return Contrast(count, mean, sd, mean - half, mean + half, confidence)


def half_width(sd: float, count: int, *, confidence: float = CONFIDENCE) -> float:
    """Half the width of the t interval of a mean of ``count`` values with this ``sd``."""
    return t_quantile(confidence, count) * sd / math.sqrt(count)


def t_quantile(confidence: float, count: int) -> float:
    """The half-width of a two-sided interval of a mean of ``count`` values, in standard errors."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}, expected a share such as 0.95.")
    from scipy.special import stdtrit  # noqa: PLC0415 - the command line must start quickly

    return float(stdtrit(count - 1, (1 + confidence) / 2))
