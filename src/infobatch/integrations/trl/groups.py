"""Prompts and their groups of completions: which are kept, in what order and weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from infobatch import Policy, Samples, Strata
from infobatch.integrations.transformers.loading import INDEX, EpochSampler
from infobatch.policies import check_ratio, keep_counts
from infobatch.tracks import LastVisit


@dataclass(frozen=True)
class SpreadPrune(Policy):
    """Prune a share ``ratio`` of the prompts whose last group had less spread than the mean.

    While a prompt is left out, the policy changes, and so would its group. The probability of being
    kept therefore grows with the epochs since the last visit: 1 − ratio after one epoch, twice that
    after two, and so on up to 1. No prompt is left out for longer than 1/(1 − ratio) epochs, and no
    weight exceeds that number. Prompts that were never seen are kept.

    The number of kept prompts is rounded up to a multiple of ``batch``, the number of prompts in a
    generation batch, because TRL drops an incomplete batch.

    Args:
        ratio: The share that is pruned one epoch after the last visit, at least 0 and below 1.
        batch: The number of prompts in a generation batch.

    Raises:
        ValueError: If ``ratio`` is out of range.

    Example:

    >>> SpreadPrune(ratio=0.75)
    SpreadPrune(ratio=0.75, batch=1)
    """

    ratio: float = 0.5
    batch: int = 1
    tracks = (LastVisit(),)

    def __post_init__(self) -> None:
        check_ratio("SpreadPrune(ratio=…)", self.ratio)

    def strata(self, samples: Samples) -> Strata:
        """Label ``a`` for prompts below the mean that were last seen ``a`` epochs ago."""
        scores = samples.scores
        seen = ~np.isnan(scores)
        mean = np.mean(scores[seen], dtype=np.float64) if seen.any() else -np.inf
        # Shares of the ages 1, 2, … that are below 1; rounded, because of float arithmetic.
        keep = [(1 - self.ratio) * age for age in range(1, 254)]
        keep = [share for share in keep if round(share, 9) < 1]
        age = np.clip(samples.age, 1, None)
        below = seen & (scores < np.float32(mean)) & (age <= len(keep))
        labels = np.where(below, age, 0).astype(np.uint8)
        sizes = np.bincount(labels, minlength=len(keep) + 1)
        reported = (float(mean),) if seen.any() else ()
        return Strata(labels, self._in_batches(sizes, keep), thresholds=reported)

    def _in_batches(self, sizes: Any, keep: list[float]) -> tuple[float, ...]:
        """The shares for which a multiple of ``batch`` prompts is kept, if there are enough."""
        counts = keep_counts(sizes, keep)
        missing = -int(counts.sum()) % self.batch
        for age in range(len(keep), 0, -1):  # the oldest first
            added = min(missing, int(sizes[age] - counts[age]))
            counts[age] += added
            missing -= added
        return tuple(
            int(count) / int(size) if size else 1.0
            for count, size in zip(counts[1:], sizes[1:], strict=True)
        )


class GroupSampler(Sampler[int]):
    """The epoch's prompts, as TRL's ``RepeatSampler`` repeats them.

    Each generation batch has ``prompts`` different ones, each ``copies`` times in a row, and is read
    ``repeats`` times, of which TRL uses the first. An incomplete one at the end is dropped.
    """

    def __init__(self, epoch: EpochSampler, *, prompts: int, copies: int, repeats: int) -> None:
        self._epoch = epoch
        self._prompts, self._copies, self._repeats = prompts, copies, repeats

    def __iter__(self) -> Iterator[int]:
        prompts = iter(self._epoch)
        while len(batch := list(islice(prompts, self._prompts))) == self._prompts:
            rows = np.tile(np.repeat(batch, self._copies), self._repeats)
            yield from rows.tolist()

    def __len__(self) -> int:
        return len(self._epoch) // self._prompts * self._prompts * self._copies * self._repeats

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; a second call with the same number changes nothing."""
        self._epoch.set_epoch(epoch)


class CarryIndexInRows:
    """A collate function that adds an index column to the rows of the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, pairs: list[tuple[int, dict[str, Any]]]) -> Any:
        """Collate the rows of ``(index, row)`` pairs."""
        return self._collate([{**row, INDEX: index} for index, row in pairs])


def group_scores(advantages: torch.Tensor, size: int) -> torch.Tensor:
    """The root mean square of each group's advantages, to which its gradient is proportional.

    Equal rewards have a score of exactly 0: in floating point, the mean of eight times 0.3 is not
    0.3, but advantages that stem only from rounding do not count as spread.

    >>> group_scores(torch.tensor([1.0, -1.0, 3e-4, 3e-4]), 2)
    tensor([1., 0.])
    """
    groups = advantages.float().view(-1, size)
    differ = groups.amax(1) > groups.amin(1)
    return groups.square().mean(1).sqrt().where(differ, 0.0)


def effective_number(weights: torch.Tensor) -> torch.Tensor:
    """Kish's effective size: the number of equal weights whose mean would be as noisy.

    >>> effective_number(torch.tensor([1.0, 1.0, 0.0]))
    tensor(2.)
    """
    return weights.sum().square() / weights.square().sum().clamp(min=1e-12)
