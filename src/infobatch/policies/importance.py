"""Keep each sample with a probability in proportion to its gradient: the least noise for a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import LastVisit, Track
from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Samples
from infobatch.policies.checks import check_number, check_ratio, check_smoothing
from infobatch.policies.gradient import Gradient, check_gradient, gradient_size
from infobatch.policies.levels import Array, strata_of_cells

_BINS = 1 << 15  # one for each sign-less pattern of a float32's upper 16 bits: steps of 0.8%
_BLOCK = 1 << 18  # samples counted at a time


@dataclass(frozen=True)
class ImportancePrune:
    """Keep a sample with probability p = min(1, max(floor, c · g)), for a given number of samples.

    g stands for the size of the sample's gradient (see ``gradient``), and c is the one number with
    which a share ``ratio`` is left out; with ``InfoBatch(save=…)``, what the budget asks for. Weights
    are 1/p, so the expected gradient is that of the full data, and for the number of samples kept no
    other probabilities add less noise (Σ g²/p is smallest for p proportional to g; with costs per
    sample, to g/√cost).

    The scores are stale and noisy, and this rule trusts them more than a threshold does. Hence the
    moving average (``smoothing``), the ``floor``, and ``aging``: g grows by this share with each epoch
    since the last visit.

    >>> ImportancePrune(0.4)
    ImportancePrune(ratio=0.4, floor=0.25, smoothing=0.7, aging=0.0, gradient='cross_entropy')
    """

    ratio: float = 0.5
    floor: float = 0.25
    smoothing: float = 0.7
    aging: float = 0.0
    gradient: Gradient = "cross_entropy"
    budget: ClassVar[Literal["own"]] = "own"
    shardable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio("ImportancePrune(ratio=…)", self.ratio)
        check_proportional("ImportancePrune", self.floor, self.smoothing, self.aging, self.gradient)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The last visit, where age counts."""
        return (LastVisit(),) if self.aging else ()

    def strata(self, samples: Samples) -> Strata:
        """Group the samples by their probabilities."""
        target = self.ratio if samples.target is None else samples.target
        sizes = gradient_size(samples.scores, self.gradient)
        histogram = Histogram.of(aged(sizes, samples, self.aging), sizes, samples)

        def leaves_out_enough(keep: Array) -> bool:
            return float((1 - keep) @ histogram.masses) >= target * histogram.total_mass

        return histogram.strata(largest_slope(histogram, self.floor, leaves_out_enough), self.floor)


def check_proportional(
    rule: str, floor: object, smoothing: object, aging: object, gradient: object
) -> None:
    """Check the arguments of the rules that keep in proportion to the gradient."""
    why = "the smallest probability to keep a sample, whose inverse is the largest weight"
    check_number(f"{rule}(floor=…)", floor, why, above=0, most=1)
    check_smoothing(f"{rule}(smoothing=…)", smoothing)
    why = "the share by which a sample's gradient counts for more with each epoch since its last visit"
    check_number(f"{rule}(aging=…)", aging, why, least=0)
    check_gradient(f"{rule}(gradient=…)", gradient)


def aged(sizes: FloatArray, samples: Samples, aging: float) -> FloatArray:
    """Sizes that count for more the longer ago they were measured."""
    if not aging:
        return sizes
    longer = np.maximum(samples.age - 1, 0).astype(np.float32)
    return sizes * (1 + np.float32(aging) * longer)


def largest_slope(
    histogram: Histogram, floor: float, leaves_out_enough: Callable[[Array], bool]
) -> float:
    """The largest c whose probabilities min(1, max(floor, c · value)) leave out enough."""
    low, high = -60.0, 60.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = leaves_out_enough(histogram.keep(float(np.exp2(middle)), floor))
        low, high = (middle, high) if enough else (low, middle)
    return float(np.exp2(low))


@dataclass(frozen=True)
class Histogram:
    """The samples in fine bins of the value that their probability is proportional to.

    It takes the place of a sort: whatever is needed to find c are sums over bins, and they can be added
    up over ranks. Samples without a score are in no bin.
    """

    codes: npt.NDArray[np.uint16]  # the bin of each sample
    values: Array  # of each bin
    counts: Array
    masses: Array  # cost of each bin; without costs, its number of samples
    squares: Array  # Σ g² of each bin
    total_mass: float  # with the samples that have no score

    @classmethod
    def of(cls, values: FloatArray, sizes: FloatArray, samples: Samples) -> Histogram:
        """Sort samples of gradients ``sizes`` into bins by ``values``, or by values/√cost."""
        cost = samples.cost
        if cost is not None:
            values = (values / np.sqrt(cost)).astype(np.float32, copy=False)
        codes = np.empty(len(values), np.uint16)
        sums = np.zeros((3, _BINS))
        for start in range(0, len(values), _BLOCK):
            block = slice(start, start + _BLOCK)
            code = (np.abs(values[block]).view(np.uint32) >> 16).astype(np.intp)  # −0 is 0
            codes[block] = code
            sums[0] += np.bincount(code, minlength=_BINS)
            if values is not sizes:
                square = np.square(sizes[block], dtype=np.float64)
                sums[2] += np.bincount(code, weights=square, minlength=_BINS)
            if cost is not None:
                sums[1] += np.bincount(code, weights=cost[block], minlength=_BINS)
        middles = (np.arange(_BINS, dtype=np.uint32) << 16) | 0x8000
        middles[0] = 0
        middles[_NO_SCORE] = 0
        numbers = middles.view(np.float32).astype(np.float64)
        if cost is None:
            sums[1] = sums[0]
        if values is sizes:
            sums[2] = sums[0] * np.square(numbers)
        sums = samples.sum(sums.ravel()).reshape(sums.shape)
        total_mass = float(sums[1].sum())
        sums[:, _NO_SCORE] = 0
        counts, masses, squares = sums
        return cls(codes, numbers, counts, masses, squares, total_mass)

    def keep(self, slope: float, floor: float) -> Array:
        """Each bin's probability of being kept; 1 for those without a score."""
        keep: Array = np.clip(slope * self.values, floor, 1.0)
        keep[_NO_SCORE] = 1.0
        return keep

    def strata(self, slope: float, floor: float) -> Strata:
        """Neighbouring bins as one stratum each."""
        return strata_of_cells(self.codes, self.keep(slope, floor), self.counts)


_NO_SCORE = np.arange(_BINS) >= 0x7F80  # NaN and infinity
