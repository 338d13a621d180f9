"""A window that slides over groups of losses, from easy to hard: SeTa."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.checks import check_count
from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_ratio, check_smoothing

_ENOUGH = 1 << 20  # losses that give the groups' edges to three digits
_ROUNDS = 100  # of k-means, which converges long before


@dataclass(frozen=True)
class SetaPrune(Policy):
    """Keep a window of groups of similar losses that slides from easy to hard, less a random share.

    Zhou et al., "Scale Efficient Training for Large Datasets" (CVPR 2025): drop a share ``ratio`` at
    random, sort the others into k ``groups`` by k-means of their losses, and keep round(``window``
    k) = w neighbouring groups, which in epoch t start at group t mod (k − w + 1). The paper's
    settings: 0.1, 5 and 0.9 on CIFAR; 0, 5 and 0.6 on ImageNet.

    * Biased: kept samples weigh 1.
    * Remembers the last loss: 4 bytes per sample, 8 with ``smoothing``. k-means of at most a million
      losses, which are sorted.
    * Our reading: k-means starts at the quantiles, so that it is the same in every run; groups that
      are empty because many losses are equal do not count. Halves are rounded to even, so that 0.9
      of 5 groups is 4. The random share is dropped after the grouping, not before. The last epochs
      (``delta``) are whole, as for every rule; in the paper they lack the random share. With a budget
      (``save=``) both shares are scaled.

    Args:
        ratio: the share of the samples to leave out at random, in [0, 1).
        groups: k, the number of groups that the losses are sorted into.
        window: the share of the groups that is kept.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> SetaPrune(0.0, window=0.6)   # the paper's for ImageNet
    SetaPrune(ratio=0.0, groups=5, window=0.6, smoothing=0.0)
    """

    ratio: float = 0.1
    groups: int = 5
    window: float = 0.9
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_ratio("SetaPrune(ratio=…)", self.ratio)
        check_count(
            "SetaPrune(groups=…)",
            self.groups,
            "it is the number of groups that the losses are sorted into",
        )
        check_number(
            "SetaPrune(window=…)", self.window, "the share of the groups kept", above=0, most=1
        )
        check_smoothing("SetaPrune(smoothing=…)", self.smoothing)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for the window (0 where all of it is kept), 2 for the groups outside."""
        scores = samples.scores
        inside = np.uint8(self.ratio > 0)
        edges = group_edges(scores, self.groups)
        count = len(edges) + 1
        wide = max(1, round(self.window * count))
        first = samples.epoch % (count - wide + 1)
        bounds = np.array([-np.inf, *edges, np.inf], np.float32)
        # A group includes its lower edge but not its upper one; NaN is outside, and therefore kept.
        kept = (scores >= bounds[first]) & (scores < bounds[first + wide])
        labels = np.where(kept, inside, np.uint8(2))
        shown = tuple(float(edge) for edge in bounds[[first, first + wide]] if np.isfinite(edge))
        return Strata(labels, (1 - self.ratio, 0.0), weights="ones", thresholds=shown)


def group_edges(scores: FloatArray, groups: int) -> npt.NDArray[np.float32]:
    """The edges between groups of similar scores, by k-means; fewer if scores are few or equal."""
    step = (len(scores) // _ENOUGH) | 1  # odd: data often alternates in even periods
    ordered = np.sort(scores[::step])
    ordered = ordered[: np.searchsorted(ordered, np.inf)]  # without NaN, which comes last
    if not len(ordered):
        return np.empty(0, np.float32)
    sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])
    quantiles = (np.arange(groups) + 0.5) / groups
    centres = np.unique(ordered[(quantiles * len(ordered)).astype(np.intp)].astype(np.float64))
    ends = np.empty(0, np.intp)
    for _ in range(_ROUNDS):
        edges = ((centres[1:] + centres[:-1]) / 2).astype(np.float32)
        settled, ends = ends, np.searchsorted(ordered, edges)
        starts_and_ends = np.unique([0, *ends, len(ordered)])  # without the groups that are empty
        if len(starts_and_ends) == len(centres) + 1 and np.array_equal(settled, ends):
            break
        centres = np.diff(sums[starts_and_ends]) / np.diff(starts_and_ends)
    return edges
