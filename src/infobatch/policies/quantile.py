"""The two-band rule behind the paper's 41.3%: prune harder where the loss is smallest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.plan import FloatArray, Strata
from infobatch.policies.ratio import check_ratio


@dataclass(frozen=True)
class QuantilePrune:
    """Prune by bands of the score's quantiles; ``bands`` are (upper quantile, ratio), rising.

    The default prunes 75% of the lowest fifth and 50% from there up to the 85th percentile, and
    keeps the rest: 47.5% of an epoch whatever the losses look like, unless many are equal (a sample
    is in a band when its score is *below* the band's upper edge). With delta = 0.875 that is 41.6%
    of a long run less the first epoch; the paper reports 41.3%. Compared with the mean rule it
    saves more and more steadily, and prunes samples that the mean rule would keep.

    >>> QuantilePrune(bands=((0.5, 0.5),))   # half of the easier half
    QuantilePrune(bands=((0.5, 0.5),))
    """

    bands: tuple[tuple[float, float], ...] = ((0.20, 0.75), (0.85, 0.50))

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

    def strata(self, scores: FloatArray) -> Strata:
        """Label the bands by the exact quantiles of the seen samples' scores."""
        seen = scores[~np.isnan(scores)]
        # The edge at quantile q is the score that exactly round(q n) scores come before.
        ranks = [round(quantile * len(seen)) for quantile, _ in self.bands]
        inside = sorted({rank for rank in ranks if rank < len(seen)})
        if inside:
            seen.partition(inside)
        edges = [float(seen[rank]) if rank < len(seen) else np.inf for rank in ranks]
        return Strata.below(
            scores, [(edge, ratio) for edge, (_, ratio) in zip(edges, self.bands, strict=True)]
        )
