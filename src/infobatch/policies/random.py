"""The control: prune at random, regardless of the scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_ratio


@dataclass(frozen=True)
class RandomPrune(Policy):
    """Prune a share ``ratio`` of all samples that were seen, chosen at random.

    P(z) = r for every sample, whatever its score. With ``rescale=True`` this is the control in Table 5 of
    Qin et al., "InfoBatch" (ICLR 2024), where it is nearly as good as InfoBatch (80.5 against 80.6
    at the same savings): any claim that scores help has to beat it. ``rescale=False`` is "Random*"
    of Tables 1 and 4, without weights.

    * Unbiased; biased with ``rescale=False``.
    * Remembers the last loss, which it does not use: 4 bytes per sample. One pass, no sort.
    * Our reading: samples without a score are kept, as by every rule, so the first epoch is whole.

    Args:
        ratio: the share of the samples to leave out, in [0, 1).
        rescale: whether kept samples make up for those left out.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> RandomPrune(0.3)
    RandomPrune(ratio=0.3, rescale=True)
    """

    ratio: float = 0.5
    rescale: bool = True
    shardable = True

    def __post_init__(self) -> None:
        check_ratio("RandomPrune(ratio=…)", self.ratio)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for every sample that has been seen."""
        seen = (~np.isnan(samples.scores)).view(np.uint8)
        return Strata(seen, (1 - self.ratio,), weights="inverse" if self.rescale else "ones")
