"""A ``DataLoader`` that answers what trainers ask of loaders, over the batches of a pruner."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from infobatch.dataset import InfoBatch
from infobatch.epoch.sampler import Shrink


class PrunedLoader(DataLoader[Any]):
    """A ``DataLoader`` over pruned data that has a ``batch_size`` and can be ``reset()``.

    torch sets ``batch_size`` to None if a loader gets a batch sampler, and some trainers compute with
    it, or call ``reset()`` after they have changed the data set's augmentation. Otherwise it is
    ``DataLoader(train_data, batch_sampler=train_data.batch_sampler(batch_size, …), …)``.

    Args:
        train_data: the pruned data.
        batch_size: the number of samples in a batch of an epoch over all data.
        drop_last, shrink, even: see :meth:`infobatch.Pruner.batch_sampler`.
        options: the other arguments of ``DataLoader``, such as ``num_workers``.

    Raises:
        TypeError: if ``train_data`` is not an :class:`~infobatch.InfoBatch`.

    >>> train_data = InfoBatch([0.5, 1.0, 1.5, 2.0], num_epochs=2)
    >>> loader = PrunedLoader(train_data, batch_size=2, shrink="batch")
    >>> loader.batch_size, len(loader)
    (2, 2)
    """

    def __init__(
        self,
        train_data: InfoBatch,
        batch_size: int,
        *,
        drop_last: bool = False,
        shrink: Shrink = "epoch",
        even: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(train_data, InfoBatch):
            raise TypeError(
                f"PrunedLoader(train_data) got {type(train_data).__name__}, expected an InfoBatch. For a "
                "Pruner, use DataLoader(Indexed(data), batch_sampler=pruner.batch_sampler(…), "
                "collate_fn=with_index(…))."
            )
        batches = train_data.batch_sampler(
            batch_size, drop_last=drop_last, shrink=shrink, even=even
        )
        super().__init__(train_data, batch_sampler=batches, **options)
        # torch forbids setting it, and uses the batch sampler.
        vars(self)["batch_size"] = batch_size

    def reset(self) -> None:
        """End persistent workers, so that the next epoch's workers see a changed data set."""
        self._iterator = None
