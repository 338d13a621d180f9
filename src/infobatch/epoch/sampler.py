"""The samplers for a loader: they walk the plan of the current epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Literal, Protocol, TypeVar

from torch.utils.data import Sampler

from infobatch.checks import check_count, check_shrink
from infobatch.epoch.course import Course
from infobatch.epoch.matching import ReadPosition
from infobatch.epoch.walk import Cut, Walk

Shrink = Literal["epoch", "batch"]
Item_co = TypeVar("Item_co", covariant=True)


class HasCourse(Protocol):
    """A pruner, as a sampler sees it."""

    _course: Course  # the epochs that the sampler walks

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch."""
        ...


class _EpochSampler(Sampler[Item_co]):
    """What a loader asks of either sampler besides its items."""

    pruner: HasCourse

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; a second call with the same number changes nothing.

        Args:
            epoch: its number, counted from 0.
        """
        self.pruner.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return how far the loader has read, for a stateful loader.

        Such a loader asks for it at each batch, so it does not contain the scores: resume from the
        data set's state instead. Because this method exists, the loader does not skip samples that
        the data set's state already skips.

        Returns:
            The position in the epoch, in plain numbers.
        """
        return self.pruner._course.position()._asdict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Note the loader's position; the data set's must agree when the loader is iterated.

        Args:
            state: what :meth:`state_dict` returned.
        """
        self.pruner._course.expect_position(ReadPosition(**state))


class WalkIterator:
    """The iterator that a loader gets.

    It refers to its walk but not vice versa, so that an epoch's memory is freed as soon as the
    loader releases it.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._walk = Walk()
        self._walk.held_by(self)
        self._indices = chain.from_iterable(self._walk.blocks(course.begin))

    def __iter__(self) -> Iterator[int]:
        if self._walk.route is not None:
            self._course.check_turn(self._walk)
        self._walk.request()
        return self._indices

    def __next__(self) -> int:
        return next(self._indices)


class PlanSampler(_EpochSampler[int]):
    """A ``torch.utils.data`` sampler over the current epoch's plan.

    Creating an iterator has no side effects: the epoch begins when the first index is taken.

    Args:
        pruner: the pruner that it belongs to, which builds it: :attr:`infobatch.Pruner.sampler`.
    """

    def __init__(self, pruner: HasCourse) -> None:
        self.pruner = pruner

    def __iter__(self) -> Iterator[int]:
        return WalkIterator(self.pruner._course)

    def __len__(self) -> int:
        """The number of samples that the next iteration visits on this rank.

        After an iteration, the number that it visited, until ``set_epoch`` or the next iteration.
        """
        route = self.pruner._course.length()
        return 0 if route is None else len(route)


class PlanBatchSampler(_EpochSampler[list[int]]):
    """The same epochs in batches, for ``DataLoader(batch_sampler=…)``, with no work per sample.

    With ``shrink="batch"`` a pruned epoch has as many batches as a full one; with ``even`` its
    batches have nearly the same size. That size then varies with the epoch, so ``batch_size`` is
    None, so that a loader that relies on a fixed size notices.

    Args:
        sampler: the sampler of a pruner.
        batch_size, drop_last, shrink, even, pad: see :meth:`infobatch.Pruner.batch_sampler`, which builds
            this object.

    Raises:
        ValueError: if ``batch_size`` is below 1, or if the options contradict each other.
    """

    def __init__(
        self,
        sampler: PlanSampler,
        batch_size: int,
        *,
        drop_last: bool,
        shrink: Shrink,
        even: bool,
        pad: bool,
    ) -> None:
        why = "a batch has at least one sample"
        batch_size = check_count("batch_sampler(): batch_size", batch_size, why)
        check_shrink(shrink)
        if even and drop_last:
            raise ValueError(
                "batch_sampler(even=True) got drop_last=True, expected drop_last=False: there is no "
                "smaller last batch to drop."
            )
        if pad and (drop_last or even or shrink == "batch"):
            raise ValueError(
                f"batch_sampler(pad=True) got drop_last={drop_last}, even={even}, shrink={shrink!r}, "
                'expected drop_last=False, even=False and shrink="epoch": padding makes every batch '
                "as large as the first, and the others change sizes or drop the last batch."
            )
        self.sampler, self.pruner = sampler, sampler.pruner
        self.batch_size = batch_size if shrink == "epoch" and not even else None
        self.drop_last = drop_last
        self.full_batch_size = batch_size
        self._cut = Cut(batch_size, drop_last, shrink == "batch", even, pad)

    def __iter__(self) -> Iterator[list[int]]:
        walk, course = Walk(), self.pruner._course
        batches = walk.in_batches(course.begin, course.check_turn, self._cut)
        walk.held_by(batches)
        return batches

    def __len__(self) -> int:
        route = self.pruner._course.length(shrinks=self._cut.shrinks)
        return 0 if route is None else len(self._cut.batches(route))
