"""Pruning after the first layers: samples are left out of the rest of the forward pass and of the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from infobatch.experimental.hardest import Hardest
from infobatch.savings import StreamSavings
from infobatch.stream import Kept, StreamPruner

DIMENSIONS = 128  # of pooled features, as published


class Scorer(Protocol):
    """Scores samples by their pooled features."""

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """One score for each row of features."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""


class Blocking:
    """Leaves samples out after a layer of the model, by the layer's output.

    After Partial Forward Blocking (Wu et al., ICCV 2025): ``Blocking(layer, Rarity(), Hardest(keep=0.6,
    ramp=…))`` leaves out the samples whose features are the most common, without weights. With
    ``PredictedSizes()`` and a :class:`infobatch.StreamPruner` the expected gradient is that of the whole batch,
    because the draw is corrected by weights whatever the scores are worth.

    While the layer is in training mode, a hook replaces its output by the rows of the kept samples, so the model
    returns a row for each of these: ``outputs = model(x)``, then ``kept = blocking.kept`` and
    ``kept.mean(criterion(outputs, y[kept.index])).backward()``. All layers after it must treat the samples
    independently of one another, except for batch normalisation, which sees the kept ones. The layers before
    see the whole batch, forwards and backwards, and that is how they are counted.

    Args:
        layer: the last layer that sees every sample; its output has a row for each.
        scorer: scores the samples by its output, pooled to at most 128 numbers.
        pruner: chooses from the scores.
        cost: the share of the model's operations up to this layer, see
            :func:`infobatch.experimental.flops.share_before`.

    Raises:
        ValueError: if ``cost`` is not a share.
    """

    def __init__(
        self, layer: nn.Module, scorer: Scorer, pruner: StreamPruner | Hardest, *, cost: float
    ) -> None:
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 1:
            raise ValueError(
                f"Blocking(cost=…) got {cost!r}, expected the share of the model's operations up to the layer, a "
                "number from 0 to 1."
            )
        self.scorer, self.pruner, self.cost = scorer, pruner, float(cost)
        self._features: torch.Tensor | None = None
        self._kept: Kept | None = None
        self._hook = layer.register_forward_hook(self._block)

    def _block(self, layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        if not layer.training:
            return None
        self._features = pooled(output.detach())
        self._kept = self.pruner.select(self.scorer.score(self._features))
        return output[self._kept.index]

    @property
    def kept(self) -> Kept:
        """The samples of the last batch that the model has outputs for.

        Raises:
            RuntimeError: if the layer has not been called in training mode yet.
        """
        if self._kept is None:
            raise RuntimeError(
                "Blocking.kept was read before the model's first forward pass in training mode, expected after it. Call "
                "model.train() and model(x) first."
            )
        return self._kept

    @property
    def features(self) -> torch.Tensor:
        """The pooled features of the kept samples of the last batch."""
        kept = self.kept
        assert self._features is not None
        return self._features[kept.index]

    def remove(self) -> None:
        """Remove the hook: the model sees every sample again."""
        self._hook.remove()

    @property
    def savings(self) -> StreamSavings:
        """The passes so far: what is left out has cost ``cost`` of one."""
        chosen = self.pruner.savings
        left_out = 1 - chosen.trained / chosen.scored if chosen.scored else 0.0
        return StreamSavings(chosen.scored, chosen.trained, chosen.unscored, self.cost * left_out)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here, bit for bit."""
        return {"scorer": self.scorer.state_dict(), "pruner": self.pruner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.scorer.load_state_dict(state["scorer"])
        self.pruner.load_state_dict(state["pruner"])


def pooled(features: torch.Tensor) -> torch.Tensor:
    """Features of any shape as (B, up to 128), by averages of neighbouring numbers.

    >>> pooled(torch.arange(256.0).view(1, 2, 8, 16))[0, :3]
    tensor([0.5000, 2.5000, 4.5000])
    """
    flat = features.flatten(1).float()
    return functional.adaptive_avg_pool1d(flat, min(DIMENSIONS, flat.shape[1]))


class Rarity:
    """Minus the logarithm of the features' density, of Gaussians around centres that follow the data.

    Our reading of Partial Forward Blocking: the centres start at random samples of the first batch; each batch
    moves every centre to the mean of the samples nearest to it, by a moving average; the variance of all
    Gaussians is the moving average of the squared distance to the nearest centre.

    Args:
        centres: how many there are; no more than the samples of the first batch.
        momentum: the share of their earlier place that centres keep in each batch.
    """

    def __init__(self, centres: int = 64, momentum: float = 0.9) -> None:
        self.count, self.momentum = centres, momentum
        self._centres: torch.Tensor | None = None
        self._variance: torch.Tensor | None = None

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """The rarity of each sample by the density so far, which then follows the batch."""
        if self._centres is None:
            self._centres = features[: self.count].clone()
        squares = torch.cdist(features, self._centres).square()
        nearest = squares.min(1)
        self._variance = self._averaged(self._variance, nearest.values.mean())
        rarity = -torch.logsumexp(-squares / (2 * self._variance.clamp(min=1e-12)), 1)
        members = functional.one_hot(nearest.indices, len(self._centres)).to(features.dtype)
        sizes = members.sum(0)[:, None]
        means = members.T @ features / sizes.clamp(min=1)
        moved = self._averaged(self._centres, means)
        self._centres = torch.where(sizes > 0, moved, self._centres)
        return rarity

    def _averaged(self, before: torch.Tensor | None, now: torch.Tensor) -> torch.Tensor:
        return now if before is None else self.momentum * before + (1 - self.momentum) * now

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {"centres": self._centres, "variance": self._variance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self._centres, self._variance = state["centres"], state["variance"]


class PredictedSizes:
    """Sizes of gradients, predicted from features by a linear model of their logarithm.

    A ridge regression on the samples seen so far, of which a batch's share fades by ``memory`` with each further
    batch. Until the first batch is learned from, every size is 1.

    Args:
        memory: the share of its weight that a batch keeps when the next one comes.
        ridge: the weight of the penalty on the coefficients, as a share of the features' variance.
    """

    def __init__(self, memory: float = 0.98, ridge: float = 1e-2) -> None:
        self.memory, self.ridge = memory, ridge
        self._products: torch.Tensor | None = None  # Σ w z zᵀ with z = (features, log size, 1)

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """The predicted size of each sample's gradient."""
        if self._products is None:
            return torch.ones(len(features), device=features.device)
        total = self._products[-1, -1]
        means = self._products[:-1, -1] / total
        covariance = self._products[:-1, :-1] / total - means[:, None] * means
        of_features, with_sizes = covariance[:-1, :-1], covariance[:-1, -1]
        width = len(with_sizes)
        penalty = self.ridge * of_features.diagonal().mean() + 1e-12
        eye = torch.eye(width, dtype=covariance.dtype, device=covariance.device)
        slopes = torch.linalg.solve(of_features + penalty * eye, with_sizes)
        predicted: torch.Tensor = means[-1] + (features.double() - means[:-1]) @ slopes
        return predicted.exp().float()

    def learn(self, features: torch.Tensor, sizes: torch.Tensor, weights: torch.Tensor) -> None:
        """Learn from samples whose sizes are known now.

        Args:
            features: (K, D), pooled.
            sizes: (K,), of their gradients.
            weights: (K,), by which the samples that were kept stand for the others, too.
        """
        logs = sizes.detach().clamp(min=1e-6).log()
        ones = torch.ones_like(logs)
        rows = torch.cat([features, logs[:, None], ones[:, None]], 1).double()
        products = (rows * weights.double()[:, None]).T @ rows
        before = self._products
        self._products = products if before is None else self.memory * before + products

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {"products": self._products}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self._products = state["products"]
