"""The draw: turns strata into a plan, exactly unbiased.

To keep a share ``q`` of a stratum of ``n`` samples, the draw keeps ``k = round(q n)`` of them, and
every k-subset is equally likely, so each sample is kept with probability exactly ``k / n`` and each
kept sample weighs exactly ``n / k``. The expected weighted gradient is then the full gradient, and
the weights of every epoch sum to the number of samples (the paper's Eq. 8, "forced").

Everything here is a pure function of its arguments, in numpy, and independent of loaders, devices
and training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.plan.groups import group_sizes
from infobatch.plan.plan import ALL, Packing, Plan, Shard
from infobatch.plan.shuffle import rows_in_random_order
from infobatch.plan.strata import LabelArray, Strata
from infobatch.plan.stratified import draw_by_class

DROPPED = 255  # the label of a sample that is not in the plan
_BLOCK = 1 << 16  # samples drawn at a time, so that temporaries stay in the CPU cache
_FEW = 8  # up to this many strata, comparing one by one beats a lookup

Rows = npt.NDArray[np.intp] | slice


def whole_plan(
    num_samples: int,
    *,
    seed: int,
    epoch: int,
    shard: Shard = ALL,
    classes: npt.NDArray[Any] | None = None,
) -> Plan:
    """Plan all samples with weight 1, for the first epoch and for annealing; see draw_plan."""
    strata = Strata(np.zeros(num_samples, np.uint8), ())
    return draw_plan(strata, seed=seed, epoch=epoch, shard=shard, classes=classes)


def draw_plan(
    strata: Strata,
    *,
    seed: int,
    epoch: int,
    shard: Shard = ALL,
    classes: npt.NDArray[Any] | None = None,
) -> Plan:
    """Draw an epoch's samples, exactly k of n in each stratum, in random order.

    With ``classes``, the number of each sample's class from 0, every class keeps its share of each stratum
    and is spread evenly over the epoch, see :mod:`infobatch.plan.stratified`.

    Whether a sample is kept, and where, depends on (seed, epoch) and its own index and stratum. A
    draw therefore changes little when few scores change: a sample that crosses a threshold moves,
    and correcting the counts adds or removes a handful of others.
    """
    labels = strata.labels
    streams = np.random.SeedSequence((seed, epoch, shard.first)).spawn(4)
    keep_stream, order_stream, repair_stream, class_stream = streams
    sizes = _sizes(labels, len(strata.keep))
    weights = np.ones(len(sizes))
    if strata.weights not in ("inverse", "ones"):
        weights[1:] = strata.weights
    targets = sizes
    if any(share < 1 for share in strata.keep):
        targets = keep_counts(sizes, strata.keep)
        if strata.weights == "inverse":
            weights = np.divide(sizes, targets, out=weights, where=targets > 0)
    elif (weights == 1).all() and sizes[1:].any():  # otherwise they are 0 already
        labels = np.zeros_like(labels)
        targets = sizes = np.array([len(labels), *np.zeros_like(sizes[1:])])
    packing = Packing.of(len(labels), len(sizes))
    if classes is not None:
        codes = draw_by_class(
            labels,
            classes,
            targets,
            packing,
            order_stream=order_stream,
            class_stream=class_stream,
        )
    else:
        if targets is not sizes:
            labels = _keep_exactly(strata, sizes, targets, keep_stream, repair_stream)
        codes = _in_order(labels, packing, order_stream)
    return Plan(len(labels), codes, packing.row_bits, weights, strata.thresholds, shard)


def _sizes(labels: LabelArray, strata: int) -> npt.NDArray[np.int64]:
    """Count the samples with each label."""
    if strata > _FEW:
        return group_sizes(labels, strata + 1)
    others = [np.count_nonzero(labels == label) for label in range(1, strata + 1)]
    return np.array([len(labels) - sum(others), *others])


def keep_counts(sizes: npt.NDArray[np.int64], keep: Sequence[float]) -> npt.NDArray[np.int64]:
    """Return how many samples of each stratum to keep: ``round(q n)``, at least 1 unless empty.

    Stratum 0 is kept whole. A stratum must not vanish, because its samples would then have weight
    1/0. The exception is a stratum with share 0, whose samples have no such weight.

    Args:
        sizes: the number of samples of each stratum, with those of stratum 0 first.
        keep: the share to keep of each stratum from 1 on.

    Returns:
        One number per stratum.

    >>> keep_counts(np.array([5, 10, 1]), [0.25, 0.1]).tolist()
    [5, 2, 1]
    """
    kept = [int(sizes[0])]
    for size, share in zip(sizes[1:].tolist(), keep, strict=True):
        kept.append(min(size, max(int(share > 0), round(share * size))))
    return np.array(kept, np.int64)


def _keep_exactly(
    strata: Strata,
    sizes: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    keep_stream: np.random.SeedSequence,
    repair_stream: np.random.SeedSequence,
) -> LabelArray:
    """Return the labels with the pruned samples' replaced by DROPPED.

    First, each sample is kept or dropped independently, which needs no sorting. Then each stratum's
    surplus or deficit, on the order of √n, is corrected with uniformly chosen samples. Because the
    samples of a stratum are interchangeable in both steps, every subset of k is equally likely.
    """
    labels = strata.labels
    bits = np.random.SFC64(keep_stream)
    # A random byte decides; the rounding error this introduces is corrected below.
    prune_below = [np.uint8(min(round((1 - share) * 256), 255)) for share in strata.keep]
    limits = np.array([0, *prune_below], np.uint8)
    surplus = sizes - targets
    kept_labels = np.empty_like(labels)
    for start in range(0, len(labels), _BLOCK):
        block = labels[start : start + _BLOCK]
        random = bits.random_raw((len(block) + 7) // 8).view(np.uint8)[: len(block)]
        if len(prune_below) > _FEW:
            dropped = (random < limits.take(block, mode="clip")).view(np.uint8)
        else:
            dropped = np.zeros(len(block), np.uint8)
            for label, limit in enumerate(prune_below, 1):
                pruned = (block == label) & (random < limit)
                surplus[label] -= np.count_nonzero(pruned)
                dropped |= pruned.view(np.uint8)
        # In uint8, -1 is 255, and 255 | label is 255; np.where takes far longer.
        np.bitwise_or(
            np.negative(dropped, out=dropped), block, out=kept_labels[start : start + _BLOCK]
        )

    generator = np.random.Generator(np.random.SFC64(repair_stream))
    if len(prune_below) > _FEW:
        surplus = group_sizes(kept_labels, DROPPED + 1)[: len(targets)] - targets
        surplus -= _corrected_by_darts(labels, kept_labels, sizes, surplus, generator)
        _correct_by_listing(labels, kept_labels, surplus, generator)
        return kept_labels
    for label in range(1, len(targets)):
        excess = int(surplus[label])
        kept = int(targets[label]) + excess
        if excess > 0:
            too_many = partial(_has, label, kept_labels)
            kept_labels[_choose(too_many, kept, len(labels), excess, generator)] = DROPPED
        elif excess < 0:
            too_few = partial(_lost, label, labels, kept_labels)
            lost = int(sizes[label]) - kept
            kept_labels[_choose(too_few, lost, len(labels), -excess, generator)] = label
    return kept_labels


def _corrected_by_darts(
    labels: LabelArray,
    kept_labels: LabelArray,
    sizes: npt.NDArray[np.int64],
    surplus: npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Correct most of the surplus of many strata at once; return the correction of each.

    All strata share the same darts: those that hit a stratum are a random sample of it.
    """
    total = len(labels)
    needed = 4 * np.abs(surplus) * total / np.maximum(sizes, 1)
    darts = min(int(needed.max(initial=0)), total >> 5)
    thrown = generator.integers(total, size=darts)
    thrown = thrown[np.sort(np.unique(thrown, return_index=True)[1])]  # each row once
    label, kept_label = labels[thrown], kept_labels[thrown]
    usable = np.where(
        surplus[label] > 0, kept_label == label, (kept_label == DROPPED) & (surplus[label] < 0)
    )
    by_label = np.argsort(label[usable], kind="stable")
    row, label = thrown[usable][by_label], label[usable][by_label]
    number = np.arange(len(label)) - np.searchsorted(label, np.arange(len(surplus)))[label]
    enough = number < np.abs(surplus[label])
    row, label = row[enough], label[enough]
    kept_labels[row] = np.where(surplus[label] > 0, np.uint8(DROPPED), label)
    return np.sign(surplus) * np.bincount(label, minlength=len(surplus))


def _correct_by_listing(
    labels: LabelArray,
    kept_labels: LabelArray,
    surplus: npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> None:
    """Correct the remaining surplus of many strata in one pass over the samples."""
    needs = np.where(surplus > 0, 1, np.where(surplus < 0, 2, 0)).astype(np.uint8)
    if not needs.any():
        return
    parts = []
    for start in range(0, len(labels), _BLOCK):
        dropped = (kept_labels[start : start + _BLOCK] == DROPPED).view(np.uint8)
        needed = needs.take(labels[start : start + _BLOCK], mode="clip")
        # With a surplus, choose among the kept samples; with a deficit, among the dropped ones.
        parts.append(start + np.flatnonzero(needed == dropped + np.uint8(1)))
    rows = np.concatenate(parts)
    rows = rows[np.argsort(labels[rows], kind="stable")]
    ends = np.cumsum(group_sizes(labels[rows], len(surplus)))
    for label in np.flatnonzero(needs).tolist():
        candidates = rows[ends[label - 1] : ends[label]]
        count = abs(int(surplus[label]))
        chosen = candidates[generator.choice(len(candidates), count, replace=False, shuffle=False)]
        kept_labels[chosen] = DROPPED if surplus[label] > 0 else label


def _has(label: int, labels: LabelArray, rows: Rows) -> npt.NDArray[np.bool_]:
    """Whether the samples in these rows have this label."""
    has: npt.NDArray[np.bool_] = labels[rows] == label
    return has


def _lost(
    label: int, labels: LabelArray, kept_labels: LabelArray, rows: Rows
) -> npt.NDArray[np.bool_]:
    """Whether the samples in these rows had this label and were dropped."""
    return _has(label, labels, rows) & _has(DROPPED, kept_labels, rows)


def _choose(
    is_candidate: Callable[[Rows], npt.NDArray[np.bool_]],
    available: int,
    total: int,
    count: int,
    generator: np.random.Generator,
) -> npt.NDArray[np.intp]:
    """Choose ``count`` of the ``available`` candidates among ``total``, all subsets equally likely."""
    darts = 2 * count * total // available
    if count * 8 > available or available * 8 < total:
        rows = np.flatnonzero(is_candidate(slice(None)))
        return rows[generator.choice(available, count, replace=False, shuffle=False)]
    # To choose few of many, throw darts and keep the first hits: far cheaper than listing all.
    chosen = np.empty(0, np.intp)
    while len(chosen) < count:
        thrown = generator.integers(total, size=darts)
        hits = np.concatenate([chosen, thrown[is_candidate(thrown)]])
        _, first = np.unique(hits, return_index=True)
        chosen = hits[np.sort(first)]
    return chosen[:count]


def _in_order(
    labels: LabelArray, packing: Packing, stream: np.random.SeedSequence
) -> npt.NDArray[Any]:
    """Pack the samples that are not dropped into codes, in random order."""
    count = len(labels)
    codes = np.empty(count - np.count_nonzero(labels == DROPPED), packing.dtype)
    filled = 0
    for rows in rows_in_random_order(count, stream):
        block = labels.take(rows, mode="clip")  # of a number that is no row, anything
        kept = np.flatnonzero((block != DROPPED) & (rows < count))
        packed = packing.pack(rows, block)
        packed.take(kept, out=codes[filled : filled + len(kept)], mode="clip")
        filled += len(kept)
    return codes
