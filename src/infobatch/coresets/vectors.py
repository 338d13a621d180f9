"""One vector per sample, for methods that compare samples: products, lengths, sums.

The gradient of the last layer is an outer product, g = (p − y) ⊗ [1, h] for softmax outputs p, a one-hot
label y and the layer's input h. Written out, it has classes × (features + 1) numbers per sample; products
of two of them need only the factors: ⟨g, g'⟩ = ⟨p − y, p' − y'⟩ (1 + ⟨h, h'⟩).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from infobatch.coresets.checks import Array, as_floats, as_probabilities, one_hot

BLOCK = 1024  # rows of a product that are computed at once
Self = TypeVar("Self")


class Vectors(Protocol):
    """One vector per sample."""

    def __len__(self) -> int: ...

    def take(self: Self, rows: torch.Tensor) -> Self:
        """The vectors of some samples."""
        ...

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        """The products of the vectors of ``rows`` with all: (len(rows), samples)."""
        ...

    def squared_norms(self) -> torch.Tensor:
        """The squared length of each."""
        ...

    def unit(self: Self) -> Self:
        """The same directions with length 1; zero vectors do not change."""
        ...

    def inner_with_sum(self) -> torch.Tensor:
        """The product of each with the sum of all."""
        ...


@dataclass(frozen=True)
class Dense:
    """Vectors as rows of a matrix."""

    matrix: torch.Tensor

    def __len__(self) -> int:
        return len(self.matrix)

    def take(self, rows: torch.Tensor) -> Dense:
        """The vectors of some samples."""
        return Dense(self.matrix[rows])

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        """The products of the vectors of ``rows`` with all."""
        return self.matrix[rows] @ self.matrix.T

    def squared_norms(self) -> torch.Tensor:
        """The squared length of each."""
        return self.matrix.square().sum(1)

    def unit(self) -> Dense:
        """The same directions with length 1."""
        return Dense(by_columns(self.matrix * _inverse_lengths(self.squared_norms())[:, None]))

    def inner_with_sum(self) -> torch.Tensor:
        """The product of each with the sum of all."""
        return self.matrix @ self.matrix.sum(0)


@dataclass(frozen=True)
class OuterProducts:
    """Vectors left ⊗ right that are never written out."""

    left: torch.Tensor
    right: torch.Tensor

    def __len__(self) -> int:
        return len(self.left)

    def take(self, rows: torch.Tensor) -> OuterProducts:
        """The vectors of some samples."""
        return OuterProducts(self.left[rows], self.right[rows])

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        """The products of the vectors of ``rows`` with all."""
        return (self.left[rows] @ self.left.T).mul_(self.right[rows] @ self.right.T)

    def squared_norms(self) -> torch.Tensor:
        """The squared length of each."""
        return self.left.square().sum(1) * self.right.square().sum(1)

    def unit(self) -> OuterProducts:
        """The same directions with length 1."""
        lengths = _inverse_lengths(self.squared_norms())
        return OuterProducts(self.left * lengths[:, None], self.right)

    def inner_with_sum(self) -> torch.Tensor:
        """The product of each with the sum of all."""
        return ((self.right @ (self.right.T @ self.left)) * self.left).sum(1)

    def written_out(self) -> torch.Tensor:
        """All numbers of all vectors: (samples, left × right)."""
        return (self.left[:, :, None] * self.right[:, None, :]).flatten(1)


def last_layer_gradients(features: Array, probabilities: Array, labels: Array) -> OuterProducts:
    """The gradient of each sample's cross-entropy in the last linear layer, bias included.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        probabilities: (samples, classes), the softmax outputs of a network.
        labels: the class of each sample.

    Returns:
        One gradient per sample, as two factors: a product of vectors takes far less memory.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.

    >>> g = last_layer_gradients([[2.0, 0.0]], [[0.25, 0.75]], [1])
    >>> g.written_out().tolist()
    [[0.25, 0.5, 0.0, -0.25, -0.5, -0.0]]
    """
    call = "last_layer_gradients()"
    values = as_floats(call, "features", features, ndim=(2,))
    outputs = as_probabilities(call, probabilities)
    if len(outputs) != len(values):
        raise ValueError(
            f"{call} got features of {len(values)} and probabilities of {len(outputs)} samples, "
            "expected the same number of both."
        )
    errors = outputs - one_hot(call, labels, outputs)
    return OuterProducts(errors.to(values), with_one(values))


def with_one(features: torch.Tensor) -> torch.Tensor:
    """[1, h] for each row h: the factors of the bias and the weights, stored by columns."""
    return torch.cat([features.new_ones(1, len(features)), features.T]).T


def by_columns(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix, stored by columns: its product with a contiguous vector takes half the time."""
    return matrix.T.contiguous().T


def as_vectors(call: str, name: str, value: Array | Vectors) -> Vectors:
    """Return vectors as they are and a matrix as its rows; anything else raises an error."""
    if isinstance(value, Dense | OuterProducts):
        return value
    return Dense(as_floats(call, name, value, ndim=(2,)))


def blocks(count: int) -> Iterator[torch.Tensor]:
    """The numbers of all samples, a block at a time."""
    for start in range(0, count, BLOCK):
        yield torch.arange(start, min(start + BLOCK, count))


def _inverse_lengths(squares: torch.Tensor) -> torch.Tensor:
    return torch.where(squares > 0, squares.clamp_min(1e-30).rsqrt(), torch.zeros_like(squares))
