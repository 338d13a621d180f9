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
_REVIEWED = 0.5  # of the easy images of an epoch: the largest part that is overdue


@dataclass(frozen=True)
class AfssPrune(Policy):
    """Keep a few of the images in which precision and recall are high, and all in which they are low.

    Xie et al., "Does YOLO Really Need to See Every Training Image in Every Epoch?" (AFSS, CVPR 2026),
    for object detection: the score of an image is q = min(precision, recall), measured every five
    epochs. Images with q > ``easy`` are easy: a share ``keep_easy`` is kept, half of it at most from
    those that were left out for ``review_easy`` epochs or more. Images with q >= ``hard`` are moderate:
    a share ``keep_moderate`` is kept, which begins with all that were left out for
    ``review_moderate`` epochs. The others are hard, and kept.

    * Biased: kept images weigh 1.
    * Remembers the score and the epoch of the last visit: 8 bytes per sample, 4 more with ``extras`` and
      4 with ``smoothing``. One pass, no sort. Measuring costs a forward pass of all images each time.
    * The score is not the loss: pass ``update(losses, scores=q)``, or with ``extras=True``
      ``update(losses, extras={"quality": q})``, where NaN keeps the last one.
      :class:`infobatch.integrations.ultralytics.InfoBatchDetectionTrainer` does the latter by itself.
    * Our reading: there is no published code. Precision and recall are those at a confidence of 0.25
      and an IoU of 0.5. Easy images that are overdue are chosen at random, and compete only with each
      other. What it saves depends only on the scores, so it takes no budget.

    Args:
        easy: the q above which an image is easy.
        hard: the q below which an image is hard.
        keep_easy, keep_moderate: the shares of easy and moderate images that an epoch keeps.
        review_easy, review_moderate: after how many epochs without a visit an image is overdue.
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
            why = f"the epochs after which {tier} images are overdue"
            check_number(f"{name}(review_{tier}=…)", getattr(self, f"review_{tier}"), why, least=1)
        check_smoothing(f"{name}(smoothing=…)", self.smoothing)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The epoch of the last visit, and the quality that ``extras`` report."""
        return (LastVisit(), Latest(QUALITY)) if self.extras else (LastVisit(),)

    def strata(self, samples: Samples) -> Strata:
        """Label 1 for overdue easy images, 2 for other easy ones, 3 for moderate ones that are not overdue."""
        quality = samples[QUALITY] if self.extras else samples.scores
        missed = samples.age - 1
        easy: npt.NDArray[np.bool_] = quality > np.float32(self.easy)
        moderate = (quality >= np.float32(self.hard)) & ~easy
        reviewed, covered = missed >= self.review_easy, missed >= self.review_moderate
        labels = (2 * easy + 3 * (moderate & ~covered)).astype(np.uint8)
        labels[easy & reviewed] = 1
        counts = np.bincount(labels, minlength=4).astype(np.float64)
        forced = np.count_nonzero(moderate & covered)
        overdue, others, free, certain = samples.sum(np.array([*counts[1:], forced], np.float64))
        wanted = self.keep_easy * (overdue + others)
        again = min(overdue, _REVIEWED * wanted)
        left = self.keep_moderate * (free + certain) - certain
        keep = (
            _share(again, overdue),
            _share(wanted - again, others),
            _share(left, free),
        )
        return Strata(labels, keep, weights="ones", thresholds=(self.hard, self.easy))


def _share(wanted: float, number: float) -> float:
    return min(1.0, max(0.0, wanted / number)) if number else 0.0
