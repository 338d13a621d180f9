"""Observation of loaders that Accelerate has prepared; used only with Accelerate.

They shard the batches among the ranks, read one batch ahead and count epochs themselves, so neither
the sampler nor the losses show where a loop is. This module uses only what the package documents
about ``GradientState`` and its loaders, and imports nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from infobatch.epoch.route import Route
from infobatch.epoch.walk import Walk

_NESTED = ("batch_sampler", "sampler")  # from a loader, through Accelerate's shards, to the sampler


def in_use() -> bool:
    """Whether an ``Accelerator`` exists."""
    accelerate = sys.modules.get("accelerate.state")
    return accelerate is not None and bool(accelerate.is_initialized())


def is_prepared_scheduler(scheduler: object) -> bool:
    """Whether ``Accelerator.prepare`` returned this scheduler."""
    module = sys.modules.get("accelerate.scheduler")
    return module is not None and isinstance(scheduler, module.AcceleratedScheduler)


def loader_at_work(sampler: object) -> Any | None:
    """The prepared loader that is in the middle of an iteration with this sampler, if there is one.

    An iteration lasts from the call of ``set_epoch`` at its start until the end of the loop. A
    loader that was left early counts until it is iterated again.
    """
    if not in_use():
        return None
    state = sys.modules["accelerate.state"].GradientState()
    if not hasattr(state, "dataloader_references"):
        raise RuntimeError(
            f"accelerate {sys.modules['accelerate'].__version__} does not show which loaders are being "
            "iterated, so an epoch's end cannot be recognised. Expected accelerate>=1.15,<2: "
            "pip install 'infobatch[accelerate]'."
        )
    for loader in reversed(state.dataloader_references):
        if loader is not None and _draws_from(loader, sampler):
            return loader
    return None


class PreparedLoop:
    """The loop over a prepared loader."""

    reads_ahead = True
    consumed = False

    def __init__(self, loader: Any, sampler: object, walk: Walk | None, route: Route) -> None:
        self._loader = loader
        self._sampler = sampler
        self._walk = walk
        self._route = route

    @property
    def _drops_last(self) -> bool:
        return bool(getattr(self._loader.batch_sampler, "drop_last", False))

    @property
    def _at_once(self) -> int:
        """The samples of a round, one batch for each rank; 0 if batches vary in size."""
        shards = self._loader.batch_sampler
        size = getattr(shards, "batch_size", None) or 0
        split = getattr(shards, "split_batches", getattr(self._loader, "split_batches", False))
        return int(size if split else size * self._route.ranks.world_size)

    @property
    def ended(self) -> bool:
        """Whether the loop is over."""
        return loader_at_work(self._sampler) is not self._loader

    @property
    def alive(self) -> bool:
        """Whether the loader's iterator is still held by a loop."""
        return not self.ended if self._walk is None else self._walk.alive

    @property
    def issued(self) -> int:
        """How many indices the sampler has issued, on a rank that has one."""
        return 0 if self._walk is None else self._walk.issued

    @property
    def exhausted(self) -> bool:
        """Whether the last batch of this rank was delivered."""
        if self._walk is not None and self._route.ranks.world_size == 1:
            return self._walk.exhausted
        return self.ended or bool(self._loader.end_of_dataloader)

    @property
    def deliverable(self) -> int | None:
        """The number of this rank's samples, if all ranks get equally many."""
        if self._walk is not None and self._route.ranks.world_size == 1:
            return self._walk.deliverable
        shards, at_once = self._loader.batch_sampler, self._at_once
        if self._walk is None or not at_once or not getattr(shards, "even_batches", False):
            return None  # batches that the main process sends, or ranks that get fewer than others
        rounds, rest = divmod(len(self._route), at_once)
        rounds += rest > 0 and not self._drops_last
        return rounds * at_once // self._route.ranks.world_size

    def dropped_of(self, positions: int) -> int:
        """The size of an incomplete round of batches, if the loader drops it."""
        return positions % self._at_once if self._drops_last and self._at_once else 0


def _draws_from(loader: object, sampler: object) -> bool:
    layer: object = loader
    while True:
        inner = next((getattr(layer, name) for name in _NESTED if hasattr(layer, name)), None)
        if inner is None or inner is sampler:
            return inner is not None
        layer = inner
