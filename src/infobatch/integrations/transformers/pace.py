"""The progress of a training run in samples and epochs, and the optimizer steps that it takes.

The Trainer counts steps and fixes their number before it begins, for epochs over all data. Here a
position is a number of samples, so that pruned epochs count as much as whole ones, and training
continues from a checkpoint with another batch size or number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from infobatch.trainers import Progress


@dataclass(frozen=True)
class RunLength:
    """The length of a training run, in optimizer steps over all data.

    The learning-rate schedule is built for these steps. They keep the size that they had when the
    run began, even if it continues from a checkpoint with another one.

    >>> RunLength(steps_per_epoch=6, steps=15).share_of(2)
    Fraction(1, 2)
    """

    steps_per_epoch: int
    steps: int

    def share_of(self, epoch: int) -> Fraction:
        """How much of an epoch belongs to the run: the last one may be broken off."""
        left = self.steps - epoch * self.steps_per_epoch
        return Fraction(min(max(left, 0), self.steps_per_epoch), self.steps_per_epoch)

    def steps_due(self, now: EpochUnderWay) -> int:
        """The steps that training on all data would have made by now."""
        progress = Progress(now.epoch, now.samples_done, now.samples, full=now.samples)
        return min(progress.full_steps(self.steps_per_epoch), self.steps)


@dataclass
class EpochUnderWay:
    """The Trainer's position in an epoch. Samples are counted over all ranks.

    Attributes:
        epoch: The epoch, from 0.
        samples: The samples of the whole epoch, without those that the loader drops.
        samples_done: Those that were trained on, before and after a resume.
        batches_left: The batches that the loader has yet to deliver to each rank.
        samples_per_batch: The samples of a batch.
        batches_per_step: The batches whose gradients an optimizer step accumulates.
    """

    epoch: int
    samples: int
    samples_done: int
    batches_left: int
    samples_per_batch: int
    batches_per_step: int

    @property
    def epochs_done(self) -> float:
        """The position as the Trainer logs it, such as 1.5 in the middle of the second epoch."""
        return self.epoch + self.samples_done / max(self.samples, 1)

    @property
    def over(self) -> bool:
        """Whether every batch has been trained on."""
        return self.batches_left <= 0

    def count_batch(self) -> None:
        """Count a batch that was trained on."""
        self.samples_done = min(self.samples_done + self.samples_per_batch, self.samples)
        self.batches_left -= 1

    def steps_for(self, samples: Fraction | int) -> int:
        """The optimizer steps that this number of samples takes."""
        return math.ceil(samples / (self.samples_per_batch * self.batches_per_step))

    def steps_left(self, share: Fraction) -> int:
        """The optimizer steps until a share of the epoch is done."""
        return max(self.steps_for(share * self.samples - self.samples_done), 0)


@dataclass(frozen=True)
class RunPace:
    """Paces a schedule by the steps that are due; see :class:`infobatch.schedule.Paceable`.

    A run may end in the middle of an epoch. For the schedule, each step is therefore an epoch of
    its own: it is paced with ``steps_per_epoch=1``.
    """

    num_epochs: int
    steps_due: Callable[[], int]

    @property
    def progress(self) -> Progress:
        """How far the run has come, including the optimizer step that was just made."""
        return Progress(self.steps_due(), done=0, total=1, full=1)
