"""The one list of loaders that are treated specially, although their packages may not be installed.

Used when an epoch begins. Only packages in use are imported.
"""

from __future__ import annotations

from torch.utils.data import Sampler

from infobatch.loaders import accelerate
from infobatch.loaders.accelerate import PreparedLoader
from infobatch.loaders.lightning import check_lightning

__all__ = ["KnownLoaders", "PreparedLoader"]


class KnownLoaders:
    """Recognises loaders that shard batches, hide the sampler or count epochs themselves."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self._sampler = sampler

    def check(self, *, same_length: bool) -> None:
        """Raise if a trainer would train pruned epochs wrongly.

        ``same_length`` means that every epoch has as many batches as one over all data.
        """
        check_lightning(same_length=same_length)

    def shard_batches(self) -> bool:
        """Whether the loaders of this process divide the batches among the ranks."""
        return accelerate.in_use()

    def prepared(self, world_size: int) -> PreparedLoader | None:
        """The loader prepared by Accelerate that is iterating the sampler, if there is one."""
        loader = accelerate.loader_at_work(self._sampler)
        return None if loader is None else PreparedLoader(loader, self._sampler, world_size)

    def counter(self) -> int | None:
        """The loader's own number for the epoch that it is beginning, if it counts epochs."""
        loader = accelerate.loader_at_work(self._sampler)
        return None if loader is None else int(loader.iteration)
