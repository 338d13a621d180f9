"""Loaders that the core has to recognise, although their packages may not be installed.

This is the only list of them, used when an epoch begins. Only packages in use are imported.
"""

from __future__ import annotations

from torch.utils.data import Sampler

from infobatch.epoch.loop import Loop
from infobatch.epoch.route import Route
from infobatch.epoch.walk import Walk
from infobatch.integrations import accelerate
from infobatch.integrations.lightning_check import check_lightning


class KnownLoaders:
    """Observes the loaders that iterate a sampler, whichever package they come from."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self._sampler = sampler

    def check(self, *, same_length: bool) -> None:
        """Refuse a trainer that would train pruned epochs wrongly."""
        check_lightning(same_length=same_length)

    def shard_batches(self) -> bool:
        """Whether the loaders of this process divide the batches among the ranks."""
        return accelerate.in_use()

    def loop_of(self, walk: Walk | None, route: Route) -> Loop | None:
        """The loop of a known loader that is beginning an epoch."""
        loader = accelerate.loader_at_work(self._sampler)
        if loader is None:
            return None
        return accelerate.PreparedLoop(loader, self._sampler, walk, route)

    def counter(self) -> int | None:
        """The loader's own number for the epoch that it is beginning, if it counts epochs."""
        loader = accelerate.loader_at_work(self._sampler)
        return None if loader is None else int(loader.iteration)
