"""Batches that carry their indices, for loaders that reorder, prefetch, filter or shard."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from infobatch.checks import check_dataset
from infobatch.wrapper import Wrapper, fetch


class Indexed(Wrapper):
    """A data set whose samples are ``(index, sample)``, for a loader with :func:`with_index`.

    Other attributes are those of the inner data set.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.

    Raises:
        TypeError: if the data set has no length or is not read by index.
    """

    def __init__(self, dataset: Any) -> None:
        check_dataset("Indexed(dataset)", dataset)
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, Any]]:
        return list(zip(indices, fetch(self.dataset, indices), strict=True))


class with_index:  # noqa: N801 - used like a function, but must pickle for spawned workers
    """Wrap a collate function so that a batch of :class:`Indexed` carries its samples' indices.

    A sample that is None is dropped, together with its index, before ``collate`` sees the batch. To
    filter by another rule, filter the pairs.

    Args:
        collate: the collate function of the samples themselves.
        key: where to put the index in batches that are dictionaries, for trainers that expect
            these; by default a batch becomes ``(index, batch)``.

    Returns:
        A collate function. ``index`` is an int64 tensor.

    Raises:
        TypeError: with ``key``, if a batch is not a dictionary.

    >>> data = Indexed([torch.ones(2), None, torch.zeros(2)])
    >>> index, batch = with_index()([data[0], data[1], data[2]])
    >>> index
    tensor([0, 2])
    >>> rows = Indexed([{"x": 1.0}, {"x": 2.0}])
    >>> with_index(key="index")([rows[0], rows[1]])["index"]
    tensor([0, 1])
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any] = default_collate, *, key: str | None = None
    ) -> None:
        self.collate = collate
        self.key = key

    def __call__(self, pairs: Sequence[tuple[int, Any]]) -> Any:
        """Collate the samples of ``(index, sample)`` pairs and add their indices."""
        kept = [(index, sample) for index, sample in pairs if sample is not None]
        index = torch.tensor([index for index, _ in kept], dtype=torch.int64)
        batch = self.collate([sample for _, sample in kept])
        if self.key is None:
            return index, batch
        if not isinstance(batch, MutableMapping):
            raise TypeError(
                f"with_index(collate, key={self.key!r}) got a batch of type {type(batch).__name__} from "
                "collate, expected a dictionary, to which the index is added. Leave key out to get "
                "(index, batch)."
            )
        batch[self.key] = index
        return batch
