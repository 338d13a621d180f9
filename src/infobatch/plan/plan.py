"""The plan of one epoch: which samples, in which order, with which weights."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch


class Shard(NamedTuple):
    """The samples that a plan covers: the indices first, first + step, first + 2 step, …"""

    first: int
    step: int


ALL = Shard(0, 1)
_BLOCK = 1 << 16  # codes at a time, so that temporaries stay in the CPU cache


class Packing(NamedTuple):
    """How a row and a weight class are packed into one code."""

    dtype: type[np.unsignedinteger[Any]]
    row_bits: int

    @classmethod
    def of(cls, num_samples: int, num_classes: int) -> Packing:
        """Four bytes if they suffice, else eight."""
        row_bits = max(1, (num_samples - 1).bit_length())
        few = row_bits + (num_classes - 1).bit_length() <= 32
        return cls(np.uint32 if few else np.uint64, row_bits)

    def pack(self, rows: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Pack rows with their weight classes."""
        codes = classes.astype(self.dtype)
        codes <<= self.dtype(self.row_bits)
        codes |= rows.astype(self.dtype, copy=False)
        return codes


@dataclass(frozen=True)
class Plan:
    """One epoch's samples in visiting order, with their weights; the same on every rank.

    Attributes:
        num_samples: the number of samples that are pruned: all, or with ``sharded=True`` one rank's.
        codes: one number per position: a sample's row in the memory and, above it, the number of its
            weight class. Four bytes as long as both fit into 32 bits. ``order`` and ``weights`` unpack
            all of them.
        row_bits: how many bits of a code are the row.
        class_weights: the weight of each weight class.
        thresholds: the scores below which samples were pruned, for rules that have such.
        shard: which samples the rows stand for.
        added_noise: how much noise pruning adds, relative to the noise of the gradient.
        kept_cost: the share of the cost that is kept, if costs were given.
        biased: whether the weights do not make up for the samples that are left out.
    """

    num_samples: int
    codes: npt.NDArray[Any] = field(repr=False)
    row_bits: int = field(repr=False)
    class_weights: npt.NDArray[np.float64]
    thresholds: tuple[float, ...] = ()
    shard: Shard = ALL
    added_noise: float = 0.0
    kept_cost: float | None = None
    biased: bool = False

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def whole(self) -> bool:
        """Whether every sample is visited, in which case every weight is exactly 1."""
        return len(self) == self.num_samples and bool((self.class_weights == 1).all())

    @property
    def order(self) -> torch.Tensor:
        """The samples' indices in visiting order, int64."""
        return torch.from_numpy(self.indices(self.codes).astype(np.int64, copy=False))

    @property
    def weights(self) -> torch.Tensor:
        """The weight of each position of ``order``, float64."""
        return torch.from_numpy(self.class_weights[self.classes(self.codes)])

    def kept(self) -> npt.NDArray[np.bool_]:
        """Return whether each row of the memory is visited.

        Returns:
            One truth value per row.
        """
        kept = np.zeros(self.num_samples, np.bool_)
        for start in range(0, len(self), _BLOCK):
            kept[self.rows(self.codes[start : start + _BLOCK])] = True
        return kept

    def rows(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Unpack the memory's rows from some of this plan's codes.

        Args:
            codes: a part of ``codes``.

        Returns:
            One row per code.
        """
        rows: npt.NDArray[Any] = codes & codes.dtype.type((1 << self.row_bits) - 1)
        return rows.astype(np.intp)

    def indices(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Unpack the sample indices from some of this plan's codes.

        Args:
            codes: a part of ``codes``.

        Returns:
            One index per code.
        """
        rows = self.rows(codes)
        return rows if self.shard == ALL else self.shard.first + self.shard.step * rows

    def classes(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Unpack the weight classes from some of this plan's codes.

        Args:
            codes: a part of ``codes``.

        Returns:
            One weight class per code.
        """
        classes: npt.NDArray[np.uint8] = (codes >> codes.dtype.type(self.row_bits)).astype(np.uint8)
        return classes


def fingerprint(plan: Plan) -> int:
    """A number that differs between plans with another seed, policy, scores or numpy version."""
    return zlib.crc32(plan.class_weights.tobytes(), zlib.crc32(plan.codes.data))
