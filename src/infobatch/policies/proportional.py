"""What the rules have in common that keep samples in proportion to their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import GradientSizes, LastVisit, Track
from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Gradient, Policy, Samples
from infobatch.policies.checks import check_number, check_smoothing
from infobatch.policies.gradient import (
    Sizing,
    check_gradient,
    check_label_smoothing,
    gradient_size,
    known_sizes,
    sizing_of,
)
from infobatch.policies.levels import Array, strata_of_cells

_BINS = 1 << 15  # one per unsigned value of a float32's upper 16 bits: steps of 0.8%
_BLOCK = 1 << 18  # samples counted at a time


@dataclass(frozen=True, kw_only=True)
class ProportionalPolicy(Policy):
    """Keep a sample with probability p = min(1, max(floor, c · g)), where g is the size of its gradient.

    A rule that derives from it chooses c. The arguments, which all of them take by name:

    Args:
        floor: the smallest probability of being kept, whose inverse is the largest weight.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.
        aging: the share by which g grows with each epoch since the last visit.
        gradient: how g follows from the score: ``"cross_entropy"``, ``"root"`` (a squared error) or
            ``"score"`` (the score is g). Losses of :mod:`infobatch.scoring` need no setting: with
            ``"cross_entropy"`` the sizes that they report are used wherever they know better.
        label_smoothing: of the cross-entropies, if plain losses are passed to ``update``.
        num_classes: the number of classes, which ``label_smoothing`` needs.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.
    """

    floor: float = 0.25
    smoothing: float = 0.7
    aging: float = 0.0
    gradient: Gradient = "cross_entropy"
    label_smoothing: float = 0.0
    num_classes: int | None = None
    shardable = True

    def __post_init__(self) -> None:
        rule = type(self).__name__
        why = "the smallest probability to keep a sample, whose inverse is the largest weight"
        check_number(f"{rule}(floor=…)", self.floor, why, above=0, most=1)
        check_smoothing(f"{rule}(smoothing=…)", self.smoothing)
        why = "the share by which a sample's gradient counts for more with each epoch since its last visit"
        check_number(f"{rule}(aging=…)", self.aging, why, least=0)
        check_gradient(f"{rule}(gradient=…)", self.gradient)
        check_label_smoothing(rule, self.label_smoothing, self.num_classes, self.gradient)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The sizes of the gradients, if they are reported, and the last visit, if age counts."""
        sizes = (GradientSizes(self.smoothing),) if self.gradient == "cross_entropy" else ()
        return (*sizes, LastVisit()) if self.aging else sizes

    def histogram(self, samples: Samples) -> Histogram:
        """Bin the samples by what their probability is proportional to: gradient, age and cost.

        Args:
            samples: those of the epoch that is about to begin.

        Returns:
            The bins, of all ranks together.
        """
        sizing = sizing_of(self)
        if not self.aging and samples.cost is None:
            return Histogram.of_scores(samples, sizing)
        sizes = gradient_size(*known_sizes(samples, sizing))
        return Histogram.of(aged(sizes, samples, self.aging), sizes, samples)


def aged(sizes: FloatArray, samples: Samples, aging: float) -> FloatArray:
    """Increase the sizes by ``aging`` for each epoch since they were measured."""
    if not aging:
        return sizes
    longer = np.maximum(samples.age - 1, 0).astype(np.float32)
    return sizes * (1 + np.float32(aging) * longer)


def largest_slope(
    histogram: Histogram, floor: float, leaves_out_enough: Callable[[Array], bool]
) -> float:
    """The largest c whose probabilities min(1, max(floor, c · value)) leave out enough."""
    low, high = -60.0, 60.0
    for _ in range(36):  # to eight digits
        middle = (low + high) / 2
        enough = leaves_out_enough(histogram.keep(float(np.exp2(middle)), floor))
        low, high = (middle, high) if enough else (low, middle)
    return float(np.exp2(low))


@dataclass(frozen=True)
class Histogram:
    """The samples in fine bins of the value that their probability is proportional to.

    It replaces a sort: everything needed to find c is a sum over bins, which can be added up over
    ranks. Samples without a score are in no bin. Only the bins that have samples are kept, a few
    thousand: finding c is then fast, and numpy does not divide its sums among threads, which would
    round them differently on a machine with another number of cores.
    """

    codes: npt.NDArray[np.uint16]  # the bin of each sample
    bins: npt.NDArray[np.intp]  # those that have samples
    values: Array  # of each of these bins
    counts: Array
    masses: Array  # cost of each bin; without costs, its number of samples
    squares: Array  # Σ g² of each bin
    total_mass: float  # including the samples that have no score

    @classmethod
    def of(cls, values: FloatArray, sizes: FloatArray, samples: Samples) -> Histogram:
        """Sort samples with gradient ``sizes`` into bins by ``values``, or by values/√cost."""
        cost = samples.cost
        if cost is not None:
            values = (values / np.sqrt(cost)).astype(np.float32, copy=False)
        codes = np.empty(len(values), np.uint16)
        sums = np.zeros((3, _BINS))
        for block, code in _in_blocks(values, codes):
            sums[0] += np.bincount(code, minlength=_BINS)
            if values is not sizes:
                square = np.square(sizes[block], dtype=np.float64)
                sums[2] += np.bincount(code, weights=square, minlength=_BINS)
            if cost is not None:
                sums[1] += np.bincount(code, weights=cost[block], minlength=_BINS)
        numbers = _middles().astype(np.float64)
        if cost is None:
            sums[1] = sums[0]
        if values is sizes:
            sums[2] = sums[0] * np.square(numbers)
        return cls._added_up(codes, numbers, sums, samples)

    @classmethod
    def of_scores(cls, samples: Samples, gradient: Sizing) -> Histogram:
        """Sort samples into bins by their scores, if these alone determine the gradients.

        The size of the gradient is then computed for each bin instead of each sample.
        """
        scores, gradient = known_sizes(samples, gradient)
        codes = np.empty(len(samples), np.uint16)
        counts = np.zeros(_BINS)
        for _, code in _in_blocks(scores, codes):
            counts += np.bincount(code, minlength=_BINS)
        sizes = gradient_size(_middles(), gradient).astype(np.float64)
        sums = np.stack([counts, counts, counts * np.square(sizes)])
        return cls._added_up(codes, sizes, sums, samples)

    @classmethod
    def _added_up(
        cls, codes: npt.NDArray[np.uint16], values: Array, sums: Array, samples: Samples
    ) -> Histogram:
        """The counts, masses and squares of all ranks, without the samples that have no score."""
        sums = samples.sum(sums.ravel()).reshape(sums.shape)
        total_mass = float(sums[1].sum())
        sums[:, _NO_SCORE] = 0
        bins = np.flatnonzero(sums[0])
        counts, masses, squares = sums[:, bins]
        return cls(codes, bins, values[bins], counts, masses, squares, total_mass)

    def keep(self, slope: float, floor: float) -> Array:
        """Each bin's probability of being kept."""
        keep: Array = np.clip(slope * self.values, floor, 1.0)
        return keep

    def strata(self, slope: float, floor: float, squares: Array | None = None) -> Strata:
        """Neighbouring bins as one stratum each; ``squares`` as in ``strata_of_cells``."""
        keep, counts = np.ones(_BINS), np.zeros(_BINS)  # samples without a score are kept
        keep[self.bins], counts[self.bins] = self.keep(slope, floor), self.counts
        if squares is not None:
            squares_of_bins = np.zeros(_BINS)
            squares_of_bins[self.bins] = squares
            squares = squares_of_bins
        return strata_of_cells(self.codes, keep, counts, squares=squares)


_NO_SCORE = np.arange(_BINS) >= 0x7F80  # NaN and infinity


def _in_blocks(
    values: FloatArray, codes: npt.NDArray[np.uint16]
) -> Iterator[tuple[slice, npt.NDArray[np.intp]]]:
    """Write the bin of each value to ``codes`` and yield the bins, a block at a time.

    Negative values fall into the bin of 0, because they have no gradient either.
    """
    for start in range(0, len(values), _BLOCK):
        block = slice(start, start + _BLOCK)
        bits = np.maximum(values[block], np.float32(0)).view(np.uint32)
        bits >>= np.uint32(16)
        bits &= np.uint32(_BINS - 1)  # without the sign that a zero may have
        codes[block] = bits
        yield block, bits.astype(np.intp)


def _middles() -> FloatArray:
    """The number in the middle of each bin; 0 for the first and for those without a score."""
    middles = (np.arange(_BINS, dtype=np.uint32) << 16) | np.uint32(0x8000)
    middles[0] = 0
    middles[_NO_SCORE] = 0
    return middles.view(np.float32)
