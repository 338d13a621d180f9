"""In-memory data sets of tensors, read a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import torch
from torch.utils.data import Dataset, TensorDataset

from infobatch.wrapper import fetch

_CHUNK = 10_000


class Tensors(TensorDataset):
    """A ``TensorDataset`` that reads a batch's samples at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return list(zip(*(tensor[rows].unbind(0) for tensor in self.tensors), strict=True))


def column(data: Dataset[Any], position: int) -> torch.Tensor:
    """One entry of all samples, such as the labels, even of a ``Subset``."""
    size = len(cast(Sized, data))
    parts = []
    for start in range(0, size, _CHUNK):
        samples = fetch(data, range(start, min(start + _CHUNK, size)))
        parts.append(torch.stack([sample[position] for sample in samples]))
    return torch.cat(parts)
