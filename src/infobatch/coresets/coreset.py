"""A chosen subset, and its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from infobatch.coresets.chance import Indices
from infobatch.coresets.inputs import Cost
from infobatch.coresets.submodular import Weights
from infobatch.memory.export import read_table, write_table


@dataclass(frozen=True)
class Coreset:
    """The chosen samples, the best first, and their weights.

    Attributes:
        indices: the chosen samples.
        weights: 1, except for methods that compute weights (CRAIG, whose weights sum to the number of
            samples): multiply each sample's loss by its weight over the mean weight.
        method: the name of the method.
        cost: what choosing the samples has cost.
        num_samples: the number of samples that they were chosen from.
        scores: one number per sample of the data set for methods that rank, where higher scores are chosen
            first; None for those that choose a set as a whole.
    """

    indices: Indices
    weights: Weights
    method: str
    cost: Cost
    num_samples: int
    scores: np.ndarray[Any, np.dtype[np.float32]] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.indices)

    def subset(self, data: Dataset[Any]) -> Subset[Any]:
        """Return the chosen samples of the data set, to train on.

        Args:
            data: the data set that the samples were chosen from.

        Returns:
            Its chosen samples, in the order of ``indices``.

        Raises:
            ValueError: if the data set has another number of samples.
        """
        if len(data) != self.num_samples:  # type: ignore[arg-type]
            raise ValueError(
                f"subset() got {len(data)} samples, but the coreset was chosen from "  # type: ignore[arg-type]
                f"{self.num_samples}. Pass the same data set."
            )
        return Subset(data, self.indices.tolist())

    def save(self, path: str | PathLike[str]) -> None:
        """Write indices and weights as ``.npz``, ``.csv`` or ``.parquet``, atomically.

        Args:
            path: the file to write; its ending decides the format.

        Raises:
            ValueError: if the file has another ending.
        """
        write_table("save()", Path(path), {"index": self.indices, "weight": self.weights})


def load_indices(path: str | PathLike[str]) -> tuple[Indices, Weights]:
    """Read the indices and the weights that ``Coreset.save`` wrote.

    Args:
        path: the file.

    Returns:
        The indices and the weights.

    Raises:
        ValueError: if the file lacks one of them.
    """
    table = read_table("load_indices()", Path(path))
    if not {"index", "weight"} <= set(table):
        raise ValueError(
            f"load_indices() got {str(path)!r} with the columns {sorted(table)}, expected 'index' and "
            "'weight', as Coreset.save() writes them."
        )
    return table["index"].astype(np.int64), table["weight"].astype(np.float32)
