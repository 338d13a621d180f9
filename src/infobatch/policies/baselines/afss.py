"""Look less often at images in which the detector finds everything: AFSS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import LastVisit, Latest, Track
from infobatch.plan import Strata
from infobatch.policies.base import Policy, Samples
from infobatch.policies.checks import check_number, check_smoothing

QUALITY = "quality"  # in extras: the smaller one of precision and recall
MEASURED_EVERY = 5  # epochs


@dataclass(frozen=True)
class AfssPrune(Policy):
    """Keep a few of the images in which precision and recall are high, and all in which they are low.

    Xie et al., "Does YOLO Really Need to See Every Training Image in Every Epoch?" (AFSS, CVPR 2026),
    for object detection: the score of an image is q = min(precision, recall), measured every five
    epochs. Images with q > ``easy`` are easy: an epoch keeps a share ``keep_easy`` of them, but in any
    case all that would otherwise not be visited within ``review_easy`` epochs. Images with q >= ``hard``
    are moderate, with ``keep_moderate`` and ``review_moderate`` in the same way. The others are hard, and kept.

    * The formulas are from notes of third parties about the paper. We had neither its text nor code, of
      which none is published, so this is not its authors' rule in every detail.
    * Biased: kept images weigh 1.
    * Reviews come together: images that were last visited in the same epoch are due in the same one, so
      that some epochs keep most of the easy images.
    * Remembers the score and the epoch of the last visit: 8 bytes per sample, 4 more with ``extras`` and
      4 with ``smoothing``. One pass, no sort. Measuring costs a forward pass of all images each time.
    * The score is not the loss: pass ``update(losses, scores=q)``, or with ``extras=True``
      ``update(losses, extras={"quality": q})``, where NaN keeps the last one.
      :class:`infobatch.integrations.ultralytics.InfoBatchDetectionTrainer` does the latter by itself.
    * Our reading: precision and recall are those at a confidence of 0.25 and an IoU of 0.5, and images that
      are due count towards the share, which is filled up at random. What the rule saves depends only on
      the scores, so it takes no budget.

    Args:
        easy: the q above which an image is easy.
        hard: the q below which an image is hard.
        keep_easy, keep_moderate: the shares of easy and moderate images that an epoch keeps.
        review_easy, review_moderate: an easy or moderate image is visited at least once in so many epochs.
        extras: whether q is reported in ``update(extras=…)`` instead of as the score.
        smoothing: rank by a moving average of the scores, in which the earlier ones have this share
            of the weight.

    Raises:
        ValueError: if a setting is out of its range; the message has the range.

    >>> AfssPrune(easy=0.9).keep_easy
    0.02
    """

    easy: float = 0.85
    hard: float = 0.55
    keep_easy: float = 0.02
    keep_moderate: float = 0.4
    review_easy: int = 10
    review_moderate: int = 3
    extras: bool = False
    smoothing: float = 0.0
    budget = "none"
    default_delta = 1.0
    shardable = True

    def __post_init__(self) -> None:
        name = "AfssPrune"
        check_number(f"{name}(easy=…)", self.easy, "the q above which images are easy", least=0)
        why = "the q below which images are hard, at most that above which they are easy"
        check_number(f"{name}(hard=…)", self.hard, why, least=0, most=self.easy)
        for tier in ("easy", "moderate"):
            why = f"the share of the {tier} images that an epoch keeps"
            check_number(
                f"{name}(keep_{tier}=…)", getattr(self, f"keep_{tier}"), why, least=0, most=1
            )
            why = f"the epochs in which every {tier} image is visited at least once"
            check_number(f"{name}(review_{tier}=…)", getattr(self, f"review_{tier}"), why, least=1)
        check_smoothing(f"{name}(smoothing=…)", self.smoothing)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The epoch of the last visit, and the quality that ``extras`` report."""
        return (LastVisit(), Latest(QUALITY)) if self.extras else (LastVisit(),)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for easy images that are not due, 2 for moderate ones; the others are kept."""
        quality = samples[QUALITY] if self.extras else samples.scores
        easy: npt.NDArray[np.bool_] = quality > np.float32(self.easy)
        moderate = (quality >= np.float32(self.hard)) & ~easy
        free_easy = easy & (samples.age < self.review_easy)
        free_moderate = moderate & (samples.age < self.review_moderate)
        labels = (free_easy + 2 * free_moderate).astype(np.uint8)
        tiers = (easy, free_easy, moderate, free_moderate)
        counts = samples.sum(np.array([np.count_nonzero(tier) for tier in tiers], np.float64))
        keep = (
            _share(self.keep_easy, *counts[:2].tolist()),
            _share(self.keep_moderate, *counts[2:].tolist()),
        )
        return Strata(labels, keep, weights="ones", thresholds=(self.hard, self.easy))


def _share(keep: float, number: float, free: float) -> float:
    """The share of those that are not due which fills up the share of all."""
    due = number - free
    return max(0.0, keep * number - due) / free if free else 0.0
