"""Batches that carry their indices, for loaders that reorder, prefetch, filter or shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate


def fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Read several samples, all at once if the data set supports it."""
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


class Indexed(Dataset[tuple[int, Any]]):
    """A data set whose samples are ``(index, sample)``, for a loader with :func:`with_index`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, Any]]:
        return list(zip(indices, fetch(self.dataset, indices), strict=True))


class with_index:  # noqa: N801 - used like a function, but must pickle for spawned workers
    """Wrap a collate function so that a batch of :class:`Indexed` becomes ``(index, batch)``.

    ``index`` is an int64 tensor. A sample that is None is dropped, together with its index, before
    ``collate`` sees the batch. To filter by another rule, filter the pairs:

    >>> data = Indexed([torch.ones(2), None, torch.zeros(2)])
    >>> index, batch = with_index()([data[0], data[1], data[2]])
    >>> index
    tensor([0, 2])
    """

    def __init__(self, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.collate = collate

    def __call__(self, pairs: Sequence[tuple[int, Any]]) -> tuple[torch.Tensor, Any]:
        """Collate the samples of ``(index, sample)`` pairs and return them with their indices."""
        kept = [(index, sample) for index, sample in pairs if sample is not None]
        index = torch.tensor([index for index, _ in kept], dtype=torch.int64)
        return index, self.collate([sample for _, sample in kept])
