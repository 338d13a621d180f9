"""Hide the samples that are classified with confidence: KAKURENBO."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import Latest, Track
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_ratio, check_smoothing
from infobatch.policies.ranking import Cut, lowest

# (share of the training, fraction of the ratio that is hidden from then on)
_DECLINE = ((0.0, 1.0), (0.3, 0.8), (0.6, 0.6), (0.8, 0.4))


@dataclass(frozen=True)
class KakurenboPrune(Policy):
    """Hide the samples with the lowest losses that are classified correctly and with confidence.

    Nguyen et al., "KAKURENBO: Adaptively Hiding Samples in Deep Neural Network Training" (NeurIPS
    2023): of the samples with the F N lowest losses, those that are classified correctly with a
    probability of at least ``confidence`` are hidden; F is ``ratio`` × 1, 0.8, 0.6, 0.4, starting
    at 0, 30, 60 and 80% of the training. Hidden samples are forwarded at the epoch's end, so that
    their losses stay up to date: call :meth:`infobatch.InfoBatch.refresh` (``refreshes``).

    * Biased: all kept samples weigh the same, 1/(1 − F). The paper multiplies the learning rate by
      this factor, which is equivalent for SGD but not for Adam, whose steps do not depend on the
      scale of the loss. F is the planned share, as in the authors' code, even if fewer are hidden.
    * Remembers the last loss: 4 bytes per sample, 8 more with ``extras`` and 4 with ``smoothing``. One
      selection per epoch, no sort.
    * Where the loss is a cross-entropy, exp(−loss) is the probability of the label, and above 0.5 the
      sample is classified correctly. For other losses ``extras=True`` takes both from
      ``update(losses, extras={"confidence": …, "correct": …})``.
    * Our reading: with a budget (``save=``) the share is the budget's; it is taken from the confident
      samples first, and where they are too few, from the lowest losses whatever the confidence.
    * The published code takes the softmax over the batch instead of the classes; this one does not.

    Args:
        ratio: the largest share of the samples to hide, in [0, 1).
        confidence: the smallest probability at which a correct answer counts as confident.
        extras: whether confidence and correctness are reported in ``update(extras=…)`` instead of
            derived from the loss.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> KakurenboPrune(0.4)
    KakurenboPrune(ratio=0.4, confidence=0.7, extras=False, smoothing=0.0)
    """

    ratio: float = 0.3
    confidence: float = 0.7
    extras: bool = False
    smoothing: float = 0.0
    budget = "own"
    default_delta = 1.0
    refreshes = True
    shardable = True

    def __post_init__(self) -> None:
        check_ratio("KakurenboPrune(ratio=…)", self.ratio)
        why = "the smallest probability at which a correct answer counts as confident"
        least = 0.0 if self.extras else 0.5  # below, the prediction may be wrong
        check_number("KakurenboPrune(confidence=…)", self.confidence, why, least=least, most=1)
        check_smoothing("KakurenboPrune(smoothing=…)", self.smoothing)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The confidence and correctness that ``extras`` report."""
        return (Latest("confidence"), Latest("correct")) if self.extras else ()

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for hidden samples, 2 for those at the cut, 3 for those that are kept."""
        scores, confident = samples.scores, self._confident(samples)
        share, cut, hidden = self._share(samples), None, confident
        if samples.target is not None:
            cut = self._cut(np.where(confident, scores, np.float32(np.nan)), share, samples)
            if not np.isfinite(cut.value):  # too few: the budget comes first
                cut, hidden = None, ~np.isnan(scores)
        if cut is None:
            cut = self._cut(scores, share, samples)
        labels = cut.labels(scores)
        labels *= hidden.view(np.uint8)
        labels[labels == 0] = 3
        weight = 1 / (1 - share)
        return Strata(labels, (*cut.keep(), 1.0), (weight, weight, weight), cut.thresholds)

    def _cut(self, values: npt.NDArray[np.float32], share: float, samples: Samples) -> Cut:
        return lowest(values, share, cost=samples.cost, total=samples.sum)

    def _share(self, samples: Samples) -> float:
        if samples.target is not None:
            return samples.target
        done = samples.epoch / samples.num_epochs
        return self.ratio * next(part for start, part in reversed(_DECLINE) if done >= start)

    def _confident(self, samples: Samples) -> npt.NDArray[np.bool_]:
        """Which samples are known to be classified correctly and with confidence."""
        if self.extras:
            confident: npt.NDArray[np.bool_] = samples["confidence"] >= np.float32(self.confidence)
            return confident & (samples["correct"] > 0)
        with np.errstate(divide="ignore"):
            largest_loss = np.float32(-np.log(np.float64(self.confidence)))
        is_small: npt.NDArray[np.bool_] = samples.scores <= largest_loss
        return is_small
