"""A plan is one epoch: which samples, in which order, with which weights.

Everything here is a pure function of its arguments, in numpy, and knows nothing of loaders, devices
or training. The words: a policy sorts the samples into *strata* by their scores; from a stratum of
``n`` samples with prune ratio ``r`` the draw keeps ``k = round((1 - r) n)``, every k-subset with the
same chance, so that each sample is in with probability exactly ``k / n`` and a kept one weighs
exactly ``n / k``. The expected weighted gradient is then the full gradient, and the weights of every
epoch sum to the number of samples (the paper's Eq. 8, "forced").
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from infobatch.cipher import Cipher

FloatArray = npt.NDArray[np.float32]
LabelArray = npt.NDArray[np.uint8]

MAX_STRATA = 254
_DROPPED = 255  # the label of a sample that is not in the plan
_BLOCK = 1 << 16  # samples drawn at a time: the temporaries stay in the processor's cache


@dataclass(frozen=True)
class Strata:
    """What a policy says of the scores: the stratum of each sample and how to prune each stratum.

    ``labels`` has one uint8 a sample: 0 means "always kept, weight 1", ``g >= 1`` means that a
    share ``ratios[g - 1]`` of the stratum is pruned. ``thresholds`` are only reported (``plan``,
    ``savings``). ``rescale=False`` leaves every weight at 1, which is biased: for baselines.

    A policy with continuous keep probabilities rounds them to at most 254 strata. That costs no
    exactness: what is kept of each stratum is counted, and weighted by what was counted.
    """

    labels: LabelArray
    ratios: tuple[float, ...]
    thresholds: tuple[float, ...] = ()
    rescale: bool = True

    def __post_init__(self) -> None:
        if self.labels.dtype != np.uint8 or self.labels.ndim != 1:
            raise TypeError(
                f"Strata(labels=…) got {self.labels.dtype} of shape {self.labels.shape}, expected a "
                "one-dimensional uint8 array with one label a sample. Use labels.astype(np.uint8)."
            )
        if len(self.ratios) > MAX_STRATA or not all(0 <= ratio < 1 for ratio in self.ratios):
            raise ValueError(
                f"Strata(ratios=…) got {self.ratios}, expected at most {MAX_STRATA} prune ratios, "
                "each in [0, 1). A ratio of 1 would never show a sample again and has no weight."
            )
        if self.labels.size and int(self.labels.max()) > len(self.ratios):
            raise ValueError(
                f"Strata(labels=…) has label {int(self.labels.max())}, but only {len(self.ratios)} "
                "ratios. Label 0 is kept whole, label g is pruned by ratios[g - 1]."
            )

    @classmethod
    def below(cls, scores: FloatArray, bands: Sequence[tuple[float, float]]) -> Strata:
        """Prune by bands of scores: ``bands`` are (threshold, ratio) with rising thresholds.

        A sample belongs to the first band whose threshold is above its score; one that is below no
        threshold, or that has no score (NaN), is always kept.
        """
        thresholds = [float(np.float32(threshold)) for threshold, _ in bands]
        # The number of thresholds above a score counts the bands from the top: label 1 is the
        # highest band. Adding booleans is faster than assigning under masks.
        labels = np.zeros(len(scores), np.uint8)
        for threshold in thresholds:
            labels += (scores < np.float32(threshold)).view(np.uint8)
        reported = tuple(threshold for threshold in thresholds if np.isfinite(threshold))
        return cls(labels, tuple(ratio for _, ratio in reversed(bands)), reported)


class Share(NamedTuple):
    """Which samples a plan is about: those with the indices first, first + step, first + 2 step, …"""

    first: int
    step: int


ALL = Share(0, 1)


@dataclass(frozen=True)
class Plan:
    """One epoch's samples in visiting order, with their weights; the same on every rank.

    (With ``sharded=True``: of one rank's share.)

    ``words`` packs a sample's place among the scores and, above it, the number of its weight class:
    four bytes a position while both fit into 32 bits. ``order`` and ``weights`` unpack all of it.
    """

    num_samples: int
    words: npt.NDArray[Any] = field(repr=False)
    place_bits: int = field(repr=False)
    class_weights: npt.NDArray[np.float64]
    thresholds: tuple[float, ...] = ()
    share: Share = ALL

    def __len__(self) -> int:
        return len(self.words)

    @property
    def whole(self) -> bool:
        """Whether every sample is visited (then every weight is exactly 1)."""
        return len(self) == self.num_samples

    @property
    def order(self) -> torch.Tensor:
        """The samples' indices in visiting order, int64."""
        return torch.from_numpy(self.indices(self.words).astype(np.int64, copy=False))

    @property
    def weights(self) -> torch.Tensor:
        """The weight of each position of ``order``, float64."""
        return torch.from_numpy(self.class_weights[self.classes(self.words)])

    def places(self, words: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Unpack the places among the scores of some of this plan's words."""
        places: npt.NDArray[Any] = words & words.dtype.type((1 << self.place_bits) - 1)
        return places.astype(np.intp)

    def indices(self, words: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Unpack the sample indices of some of this plan's words."""
        places = self.places(words)
        return places if self.share == ALL else self.share.first + self.share.step * places

    def classes(self, words: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Unpack the weight classes of some of this plan's words."""
        classes: npt.NDArray[np.uint8] = (words >> words.dtype.type(self.place_bits)).astype(
            np.uint8
        )
        return classes


def fingerprint(plan: Plan) -> int:
    """A number that tells plans apart: of another seed, policy or scores, or of another numpy."""
    ends = np.concatenate([plan.words[:4096], plan.words[-4096:]]).astype(np.uint64)
    # With one seed the same samples have the same order, so in between their set is enough.
    between = np.bitwise_xor.reduce(plan.words).astype(np.uint64)
    known = (ends.tobytes(), between.tobytes(), plan.class_weights.tobytes())
    return zlib.crc32(b"".join(known), len(plan) & 0xFFFFFFFF)


def whole_plan(num_samples: int, *, seed: int, epoch: int, share: Share = ALL) -> Plan:
    """All samples in a random order, each with weight 1: the first epoch, and annealing."""
    strata = Strata(np.zeros(num_samples, np.uint8), ())
    return draw_plan(strata, seed=seed, epoch=epoch, share=share)


def draw_plan(strata: Strata, *, seed: int, epoch: int, share: Share = ALL) -> Plan:
    """Draw the samples of an epoch, exactly k of n in each stratum, and put them in random order.

    What becomes of a sample depends on (seed, epoch) and its own index and stratum. So a draw
    changes little where few scores do: a sample that crosses a threshold moves itself, and the
    counts' correction takes or leaves a handful of others.
    """
    labels = strata.labels
    streams = np.random.SeedSequence((seed, epoch, share.first)).spawn(3)
    keep_stream, order_stream, repair_stream = streams
    # np.bincount would widen the labels to eight bytes each.
    others = [np.count_nonzero(labels == g) for g in range(1, len(strata.ratios) + 1)]
    sizes = np.array([len(labels) - sum(others), *others])
    weights = np.ones(len(sizes))
    if any(strata.ratios):
        targets = keep_counts(sizes, strata.ratios)
        labels = _keep_exactly(strata, sizes, targets, keep_stream, repair_stream)
        if strata.rescale:
            weights = np.divide(sizes, targets, out=weights, where=targets > 0)
    else:
        labels = np.zeros_like(labels)
    words, place_bits = _in_random_order(labels, len(sizes), order_stream)
    return Plan(len(labels), words, place_bits, weights, strata.thresholds, share)


def keep_counts(sizes: npt.NDArray[np.int64], ratios: Sequence[float]) -> npt.NDArray[np.int64]:
    """How many of each stratum stay: ``round((1 - r) n)``, but at least one of any that has some.

    Stratum 0 stays whole. A stratum must not vanish: its samples would have weight 1/0.
    """
    kept = [int(sizes[0])]
    for size, ratio in zip(sizes[1:].tolist(), ratios, strict=True):
        kept.append(min(size, max(1, round((1 - ratio) * size))))
    return np.array(kept, np.int64)


def _keep_exactly(
    strata: Strata,
    sizes: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    keep_stream: np.random.SeedSequence,
    repair_stream: np.random.SeedSequence,
) -> LabelArray:
    """Return the labels with the pruned samples' replaced by _DROPPED.

    First every sample is kept or not by itself, which needs no sorting; then each stratum's
    surplus or lack, of the order of √n, is corrected by samples chosen uniformly. Because the
    samples of a stratum are interchangeable in both steps, every subset of k is equally likely.
    """
    labels = strata.labels
    bits = np.random.SFC64(keep_stream)
    # A byte of randomness decides; what its coarseness leaves is part of the correction.
    prune_below = [np.uint8(min(round(ratio * 256), 255)) for ratio in strata.ratios]
    surplus = sizes - targets
    kept_labels = np.empty_like(labels)
    for start in range(0, len(labels), _BLOCK):
        block = labels[start : start + _BLOCK]
        random = bits.random_raw((len(block) + 7) // 8).view(np.uint8)[: len(block)]
        dropped = np.zeros(len(block), np.uint8)
        for label, limit in enumerate(prune_below, 1):
            pruned = (block == label) & (random < limit)
            surplus[label] -= np.count_nonzero(pruned)
            dropped |= pruned.view(np.uint8)
        # The negative of 1 is 255, and 255 | label is 255; np.where takes far longer.
        np.bitwise_or(
            np.negative(dropped, out=dropped), block, out=kept_labels[start : start + _BLOCK]
        )

    generator = np.random.Generator(np.random.SFC64(repair_stream))
    for label in range(1, len(targets)):
        excess = int(surplus[label])
        if excess > 0:
            kept_labels[_choose(kept_labels == label, excess, generator)] = _DROPPED
        elif excess < 0:
            lost = (labels == label) & (kept_labels == _DROPPED)
            kept_labels[_choose(lost, -excess, generator)] = label
    return kept_labels


def _choose(
    candidates: npt.NDArray[np.bool_], count: int, generator: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Choose ``count`` of the places where ``candidates`` is true, all subsets equally likely."""
    available = int(np.count_nonzero(candidates))
    if count * 8 > available or available * 8 < len(candidates):
        places = np.flatnonzero(candidates)
        return places[generator.choice(available, count, replace=False, shuffle=False)]
    # Few of many: throw darts and keep the first hits, which is far cheaper than listing them all.
    chosen = np.empty(0, np.intp)
    while len(chosen) < count:
        darts = generator.integers(len(candidates), size=2 * count * len(candidates) // available)
        hits = np.concatenate([chosen, darts[candidates[darts]]])
        _, first = np.unique(hits, return_index=True)
        chosen = hits[np.sort(first)]
    return chosen[:count]


def _in_random_order(
    labels: LabelArray, num_classes: int, stream: np.random.SeedSequence
) -> tuple[npt.NDArray[Any], int]:
    """Pack the samples that are not dropped into words and shuffle them."""
    count = len(labels)
    place_bits = max(1, (count - 1).bit_length())
    word: Any = np.uint32 if place_bits + (num_classes - 1).bit_length() <= 32 else np.uint64
    cipher = Cipher(word, stream)
    words = np.empty(count - np.count_nonzero(labels == _DROPPED), word)
    filled = 0
    for start in range(0, count, _BLOCK):
        block = labels[start : start + _BLOCK]
        packed = block.astype(word)
        packed <<= word(place_bits)
        packed |= np.arange(start, start + len(block), dtype=word)
        kept = np.flatnonzero(block != _DROPPED)
        into = words[filled : filled + len(kept)]
        packed.take(kept, out=into, mode="clip")
        cipher.encrypt(into)
        filled += len(kept)
    words.sort()
    cipher.decrypt(words)
    return words, place_bits
