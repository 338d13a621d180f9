"""Observation of loaders that Accelerate has prepared; used only with Accelerate.

They shard the batches among the ranks, read one batch ahead and count epochs themselves, so neither
the sampler nor the losses show where a loop is. This module uses only what the package documents
about ``GradientState`` and its loaders, and imports nothing.
"""

from __future__ import annotations

import sys
from typing import Any

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
            "pip install '.[accelerate]' in a clone of infobatch."
        )
    for loader in reversed(state.dataloader_references):
        if loader is not None and _draws_from(loader, sampler):
            return loader
    return None


class PreparedLoader:
    """A prepared loader during one of its iterations."""

    def __init__(self, loader: Any, sampler: object, world_size: int) -> None:
        self._loader = loader
        self._sampler = sampler
        self.world_size = world_size

    @property
    def ended(self) -> bool:
        """Whether the iteration is over."""
        return loader_at_work(self._sampler) is not self._loader

    def check_resume(self, epoch: int, done: int) -> None:
        """Raise if the loader skips what was trained on before a checkpoint by itself, too."""
        if getattr(self._loader, "use_stateful_dataloader", False):
            raise RuntimeError(
                f"Epoch {epoch} continues after {done} samples, and the prepared loader is a "
                "StatefulDataLoader, which skips batches when its own state is loaded: part of the "
                "epoch would be left out. The pruner's state is enough: prepare the loader without "
                "DataLoaderConfiguration(use_stateful_dataloader=True), or resume between epochs."
            )

    @property
    def at_last_batch(self) -> bool:
        """Whether this rank has received its last batch."""
        return self.ended or bool(self._loader.end_of_dataloader)

    @property
    def _drops_last(self) -> bool:
        return bool(getattr(self._loader.batch_sampler, "drop_last", False))

    @property
    def _at_once(self) -> int:
        """The samples of a round, one batch for each rank; 0 if batches vary in size."""
        shards = self._loader.batch_sampler
        size = getattr(shards, "batch_size", None) or 0
        split = getattr(shards, "split_batches", getattr(self._loader, "split_batches", False))
        return int(size if split else size * self.world_size)

    def share_of(self, positions: int) -> int | None:
        """How many of an epoch's positions this rank receives, if all ranks get equally many."""
        at_once = self._at_once
        if not at_once or not getattr(self._loader.batch_sampler, "even_batches", False):
            return None
        rounds, rest = divmod(positions, at_once)
        rounds += rest > 0 and not self._drops_last
        return rounds * at_once // self.world_size

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
