"""A policy's decision: the stratum of each sample, and the share of each stratum to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
LabelArray = npt.NDArray[np.uint8]

MAX_STRATA = 254
_BLOCK = 1 << 17  # samples compared at a time: no mask of all of them, and few calls per sample


@dataclass(frozen=True)
class Strata:
    """The stratum of each sample, and each stratum's share to keep and weight.

    A policy with continuous keep probabilities rounds them to at most 254 strata. This does not
    make the weights inexact: they follow from the number actually kept in each stratum.

    Args:
        labels: one uint8 per sample: 0 means "always kept, weight 1", ``g >= 1`` means that a share
            ``keep[g - 1]`` of the stratum is kept, chosen at random.
        keep: the share of each stratum that is kept.
        weights: the weights of the kept samples of each stratum. ``"inverse"``, the default, is one
            over the share that was actually kept, so that the expected gradient is that of the full
            data. ``"ones"`` (no rescaling) and explicit numbers, one per stratum, are biased; only
            they allow a share of 0, because no weight can make up for a sample that is never kept.
        thresholds: are only reported, in ``plan`` and ``savings``.

    Raises:
        TypeError, ValueError: if the arguments do not fit together; the message says what to change.

    >>> import numpy as np
    >>> strata = Strata(np.array([0, 1, 1, 2, 2], np.uint8), keep=(0.5, 1.0))
    >>> strata.biased
    False
    """

    labels: LabelArray
    keep: tuple[float, ...]
    weights: Literal["inverse", "ones"] | tuple[float, ...] = "inverse"
    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.labels.dtype != np.uint8 or self.labels.ndim != 1:
            raise TypeError(
                f"Strata(labels=…) got {self.labels.dtype} of shape {self.labels.shape}, expected a "
                "one-dimensional uint8 array with one label per sample. Use labels.astype(np.uint8)."
            )
        if len(self.keep) > MAX_STRATA or not all(0 <= share <= 1 for share in self.keep):
            raise ValueError(
                f"Strata(keep=…) got {self.keep}, expected at most {MAX_STRATA} shares to keep, each "
                "in (0, 1]."
            )
        if isinstance(self.weights, str):
            known = self.weights in ("inverse", "ones")
        else:
            known = len(self.weights) == len(self.keep)
        if not known:
            raise ValueError(
                f"Strata(weights=…) got {self.weights!r}, expected 'inverse', 'ones', or one number "
                f"for each of the {len(self.keep)} strata."
            )
        if self.weights == "inverse" and not all(self.keep):
            raise ValueError(
                f"Strata(keep=…) got {self.keep} with weights='inverse', expected shares above 0: a "
                "sample that is never kept has no weight. Use weights='ones' to leave samples out "
                "for good, which is biased."
            )
        if self.labels.size and int(self.labels.max()) > len(self.keep):
            raise ValueError(
                f"Strata(labels=…) has label {int(self.labels.max())}, but keep has only "
                f"{len(self.keep)} shares. Label 0 is always kept; label g is kept by keep[g - 1]."
            )

    @property
    def biased(self) -> bool:
        """Whether the expected gradient differs from that of the full data, by these weights."""
        if self.weights == "inverse":
            return False
        weights = (1.0,) * len(self.keep) if self.weights == "ones" else self.weights
        expected = (share * weight for share, weight in zip(self.keep, weights, strict=True))
        return any(abs(weight - 1) > 1e-6 for weight in expected)

    @classmethod
    def below(cls, scores: FloatArray, bands: Sequence[tuple[float, float]]) -> Strata:
        """Prune by bands of scores.

        A sample belongs to the first band whose threshold is above its score. A sample that is
        below no threshold, or that has no score (NaN), is always kept.

        Args:
            scores: one float32 per sample.
            bands: (threshold, prune ratio) by rising threshold.

        Returns:
            One stratum per band, weighted without bias.

        Raises:
            ValueError: if there are more than 254 bands, or a prune ratio is outside [0, 1).

        >>> Strata.below(np.array([0.1, 0.4, 0.9], np.float32), [(0.5, 0.25)]).labels
        array([1, 1, 0], dtype=uint8)
        """
        thresholds = [float(np.float32(threshold)) for threshold, _ in bands]
        # The number of thresholds above a score counts the bands from the top: label 1 is the
        # highest band. Adding booleans is faster than assigning under masks.
        labels = np.zeros(len(scores), np.uint8)
        for start in range(0, len(scores), _BLOCK):
            block = scores[start : start + _BLOCK]
            for threshold in thresholds:
                labels[start : start + _BLOCK] += (block < np.float32(threshold)).view(np.uint8)
        reported = tuple(threshold for threshold in thresholds if np.isfinite(threshold))
        keep = tuple(1 - ratio for _, ratio in reversed(bands))
        return cls(labels, keep, thresholds=reported)
