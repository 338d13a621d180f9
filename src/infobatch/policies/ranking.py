"""Finding the samples with the lowest values, and values at given ranks, without sorting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.plan import FloatArray, LabelArray
from infobatch.policies.base import Sum, alone

_BLOCK = 1 << 17  # samples at a time, so that temporaries stay in the CPU cache
_FEW_PASSES, _FEW_COUNTS = 16, 4  # bits of a float32 by which numbers are counted at a time
_SIGN = -(1 << 31)  # the sign bit of an int32
_FRACTION = 6  # decimals to round to: 0.3 of 10 samples is 3, not 2.9999999999999996

Ordered = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Cut:
    """A cut of the samples, in ascending order of a value, into two parts.

    The lower part has the samples below ``value`` and, of those equal to it, any share ``tied``.
    """

    value: float
    tied: float

    def labels(self, values: FloatArray) -> LabelArray:
        """1 for the values below, 2 for those at the cut, 0 for those above and for NaN."""
        at = np.float32(self.value)
        labels: LabelArray = (values == at).view(np.uint8)
        labels += labels
        labels += (values < at).view(np.uint8)
        return labels

    def keep(self, below: float = 0.0) -> tuple[float, float]:
        """The shares of labels 1 and 2 to keep, if a share ``below`` of the lower part is kept."""
        return below, 1 - self.tied * (1 - below)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The value of the cut, in the form that strata report."""
        return (self.value,) if np.isfinite(self.value) else ()


def lowest(
    values: FloatArray, share: float, *, cost: FloatArray | None = None, total: Sum = alone
) -> Cut:
    """Cut off the lowest values, up to a ``share`` of all samples or of their cost.

    ``total`` adds up over ranks. NaN belongs to neither part but counts towards the total; if there
    are too few other samples, all of them are in the lower part.
    """
    if cost is None and total is alone:
        return _selected(values, share)
    return _counted(values, cost, total, share=share)


def at_ranks(values: FloatArray, ranks: Sequence[int], total: Sum = alone) -> list[float]:
    """The values with exactly so many before them in ascending order; there must be no NaN.

    ``total`` adds up over processes, each of which has some of the values; only a few counts are
    exchanged. A process that has all of the values reorders them.
    """
    if total is not alone:
        return [_counted(values, None, total, _FEW_COUNTS, rank=rank).value for rank in ranks]
    # One by one, from above: numpy takes much longer for several at once.
    below = values
    for rank in sorted(set(ranks), reverse=True):
        below.partition(rank)
        below = below[:rank]
    return [float(values[rank]) for rank in ranks]


def _selected(values: FloatArray, share: float) -> Cut:
    """The cut by numpy's selection, if this process has all values and they count equally."""
    wanted = round(share * len(values), _FRACTION)
    position = int(wanted)
    if position >= len(values):
        return Cut(np.inf, 0.0)
    value = np.partition(values, position)[position]  # NaN comes last
    if np.isnan(value):
        return Cut(np.inf, 0.0)
    below, tied = np.count_nonzero(values < value), np.count_nonzero(values == value)
    return Cut(float(value), (wanted - below) / tied)


def _counted(
    values: FloatArray,
    cost: FloatArray | None,
    total: Sum,
    digit_bits: int = _FEW_PASSES,
    *,
    share: float = 0.0,
    rank: int | None = None,
) -> Cut:
    """A cut from sums over ranges of numbers, which can be added up over processes.

    Cuts off a ``share`` of the whole mass, or with ``rank`` so many samples. A float32 is read as
    digits of ``digit_bits`` bits, the highest first, each of which takes a pass over the values.
    """
    largest = (1 << digit_bits) - 1
    prefix, wanted, tied = 0, 0.0, 0.0
    for shift in range(32 - digit_bits, -1, -digit_bits):
        first = shift == 32 - digit_bits
        sums = np.zeros(largest + 2)
        for ordered, costs in _blocks(values, cost):
            digits, masses = ordered >> np.uint32(shift), costs
            if not first:  # only of the numbers that begin with the digits found so far
                rows = np.flatnonzero(digits >> np.uint32(digit_bits) == prefix)
                digits = digits[rows] & np.uint32(largest)
                masses = None if costs is None else costs[rows]
            sums[:-1] += np.bincount(digits, masses, minlength=largest + 1)
        sums[-1] = len(values) if cost is None else float(np.sum(cost, dtype=np.float64))
        sums = total(sums)
        if first:
            wanted = round(share * float(sums[-1]), _FRACTION) if rank is None else rank
        digit, before = _reached(sums[:-1], wanted)
        if first and digit > largest:
            return Cut(np.inf, 0.0)
        digit = min(digit, largest)  # sums in a different order may differ in the last digit
        prefix = (prefix << digit_bits) | digit
        wanted -= before
        tied = wanted / float(sums[digit]) if sums[digit] else 0.0
    return Cut(_number(prefix), min(max(tied, 0.0), 1.0))


def _reached(masses: npt.NDArray[np.float64], wanted: float) -> tuple[int, float]:
    """The first position at which more than ``wanted`` is reached, and the mass before it."""
    sums = np.cumsum(masses)
    position = int(np.searchsorted(sums, wanted, side="right"))
    return position, float(sums[position - 1]) if position else 0.0


def _blocks(
    values: FloatArray, cost: FloatArray | None
) -> Iterator[tuple[Ordered, FloatArray | None]]:
    """Yield the known numbers, as integers in the same order, with their costs."""
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK] + np.float32(0)  # turns −0 into 0
        costs = None if cost is None else cost[start : start + _BLOCK]
        if np.isnan(block.min(initial=np.inf)):
            known = ~np.isnan(block)
            block, costs = block[known], None if costs is None else costs[known]
        bits = block.view(np.int32)
        # All bits of a negative number are inverted, of others only the sign.
        yield (bits ^ ((bits >> 31) | np.int32(_SIGN))).view(np.uint32), costs


def _number(ordered: int) -> float:
    bits = ordered ^ (0x80000000 if ordered >> 31 else 0xFFFFFFFF)
    return float(np.uint32(bits).view(np.float32))
