"""The two-band rule behind the paper's 41.3%: prune harder where the loss is smallest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infobatch.plan import FloatArray, Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_ratio, check_smoothing
from infobatch.policies.ranking import at_ranks


@dataclass(frozen=True)
class QuantilePrune(Policy):
    """Prune by bands of the score's quantiles; ``bands`` are (upper quantile, ratio), rising.

    Qin et al., "InfoBatch" (ICLR 2024), section 3.1: P(z) = 0.75 below the 20th percentile of the scores
    and 0.5 from there to the 85th. That prunes 47.5% of an epoch whatever the losses look like, unless
    many are equal. With delta = 0.875 that is 41.6% of a long run, and less because the first epoch
    is whole; the paper reports 41.3%. Compared with the mean rule it saves more, and more steadily,
    and also prunes samples that the mean rule would keep.

    * Unbiased: a kept sample weighs one over the share of its band that was kept.
    * Remembers the last loss: 4 bytes per sample, 8 with ``smoothing``. One selection per epoch, no sort.
    * Our reading: the published code has the two bands only in a side script. Quantiles are those
      of the known scores, and a sample is in a band when its score is *below* the band's upper
      edge. Where many scores are equal to an edge, as losses in bfloat16 that have reached 0, all of them
      are on the side that brings the band closer to its share.

    Args:
        bands: pairs (upper quantile, share to leave out), by rising quantile.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> QuantilePrune(bands=((0.5, 0.5),))   # half of the easier half
    QuantilePrune(bands=((0.5, 0.5),), smoothing=0.0)
    """

    bands: tuple[tuple[float, float], ...] = ((0.20, 0.75), (0.85, 0.50))
    smoothing: float = 0.0
    shardable = True

    def __post_init__(self) -> None:
        quantiles = [quantile for quantile, _ in self.bands]
        rising = all(low < high for low, high in zip([0.0, *quantiles], quantiles, strict=False))
        if not quantiles or not rising or quantiles[-1] > 1:
            raise ValueError(
                f"QuantilePrune(bands=…) got {self.bands!r}, expected (upper quantile, ratio) pairs "
                "with rising quantiles in (0, 1], such as ((0.20, 0.75), (0.85, 0.50))."
            )
        for _, ratio in self.bands:
            check_ratio("QuantilePrune(bands=…)", ratio)
        check_smoothing("QuantilePrune(smoothing=…)", self.smoothing)

    def strata(self, samples: Samples) -> Strata:
        """Label the bands by the exact quantiles of the seen samples' scores."""
        scores = samples.scores
        # If all are seen, a copy is enough: filtering takes longer than finding the quantiles.
        seen = scores[~np.isnan(scores)] if np.isnan(scores.min(initial=np.inf)) else scores.copy()
        count = int(samples.sum(np.array([len(seen)], np.float64))[0])
        # The edge at quantile q is the score with exactly round(q n) scores before it.
        ranks = [round(quantile * count) for quantile, _ in self.bands]
        inside = [rank for rank in ranks if rank < count]
        edges = at_ranks(seen, inside, samples.sum)
        above = [np.inf] * (len(ranks) - len(inside))
        edges = [*_nearest(scores, edges, inside, samples), *above]
        ratios = [ratio for _, ratio in self.bands]
        return Strata.below(scores, list(zip(edges, ratios, strict=True)))


def _nearest(
    scores: FloatArray, edges: Sequence[float], ranks: Sequence[int], samples: Samples
) -> list[float]:
    """Move edges that many scores are equal to above them, if that is closer to their ranks."""
    below = samples.sum(np.array([np.count_nonzero(scores < edge) for edge in edges], np.float64))
    if np.array_equal(below, ranks):
        return list(edges)
    up_to = samples.sum(np.array([np.count_nonzero(scores <= edge) for edge in edges], np.float64))
    is_closer = up_to - np.array(ranks) < np.array(ranks) - below
    moved = np.nextafter(np.array(edges, np.float32), np.float32(np.inf))
    return [float(edge) for edge in np.where(is_closer, moved, edges)]
