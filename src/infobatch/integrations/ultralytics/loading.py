"""A loader of pruned epochs for Ultralytics' loop, and what mosaic reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ultralytics.data.augment import Mosaic

from infobatch import InfoBatch, PrunedLoader
from infobatch.trainers import samples_per_epoch


class EpochLoader(PrunedLoader):
    """A loader for Ultralytics' loop, which asks for its length and its iterator in its own ways.

    Args:
        train_data, batch_size, drop_last, options: see :class:`~infobatch.PrunedLoader`.
    """

    def __init__(
        self, train_data: InfoBatch, batch_size: int, *, drop_last: bool, **options: Any
    ) -> None:
        super().__init__(train_data, batch_size, drop_last=drop_last, **options)
        samples = samples_per_epoch(train_data)
        self._batches = samples // batch_size if drop_last else -(-samples // batch_size)
        # torch forbids setting it, and uses the batch sampler.
        vars(self)["sampler"] = _WholeEpoch(samples)

    def __len__(self) -> int:
        """The batches of an epoch over all data: asked for once, for the warm-up of all epochs."""
        return self._batches

    def __iter__(self) -> Any:
        """Begin when the first batch is asked for: Ultralytics creates a second iterator, unused."""
        yield from super().__iter__()

    def close(self) -> None:
        """End the workers."""
        self.reset()


class _WholeEpoch:
    """Stands where Ultralytics looks for a rank's sampler: asks how many samples, and sets the epoch."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the pruner was told the epoch when it began."""


def mosaics(transform: Any) -> Iterator[Mosaic]:
    """The mosaics in a transform, also those of the partners in a mixture."""
    if isinstance(transform, Mosaic):
        yield transform
    for inner in (getattr(transform, "pre_transform", None), *getattr(transform, "transforms", ())):
        if inner is not None:
            yield from mosaics(inner)
