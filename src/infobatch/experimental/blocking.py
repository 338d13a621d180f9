"""Pruning after the first layers: samples are left out of the rest of the forward pass and of the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch._compile import _disable_dynamo  # torch.compiler.disable, but imports Dynamo when called
from torch.nn import functional

from infobatch.experimental.hardest import Hardest
from infobatch.probe import in_backward
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
    ramp=…, mean_over="kept"))`` leaves out the samples whose features are the most common, without weights, and
    the loss is the mean over the kept ones. (So it is in the criterion of torchvision's training script, on which
    the published code builds; over the whole batch, steps would become smaller as the ramp rises.) With
    ``PredictedSizes()`` and a :class:`infobatch.StreamPruner` the expected gradient is that of the whole batch,
    because the draw is corrected by weights whatever the scores are worth.

    While the layer is in training mode and gradients are enabled, a hook replaces its output by the rows of the
    kept samples, so the model returns a row for each of these: ``outputs = model(x)``, then
    ``kept = blocking.kept`` and ``kept.mean(criterion(outputs, y[kept.index])).backward()``. All layers after it
    must treat the samples independently of one another, except for batch normalisation, which sees the kept ones.
    The layers before see the whole batch, forwards and backwards, and that is how they are counted.

    Under ``torch.compile`` the graph is split at the layer. If a checkpoint runs the layer again in the backward
    pass, the rows are the same as before.

    Args:
        layer: the last layer that sees every sample; its output has a row for each.
        scorer: scores the samples by its output, pooled to at most 128 numbers.
        pruner: chooses from the scores.
        cost: the share of the model's operations up to this layer, see
            :func:`infobatch.experimental.flops.share_before`.

    Raises:
        ValueError: if ``cost`` is not a share, or the pruner cannot choose by these scores.
    """

    def __init__(
        self, layer: nn.Module, scorer: Scorer, pruner: StreamPruner | Hardest, *, cost: float
    ) -> None:
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 1:
            raise ValueError(
                f"Blocking(cost=…) got {cost!r}, expected the share of the model's operations up to the layer, a "
                "number from 0 to 1."
            )
        if isinstance(scorer, Rarity) and isinstance(pruner, StreamPruner):
            raise ValueError(
                "Blocking() got Rarity() with a StreamPruner, which draws in proportion to the scores, but a rarity may "
                "be negative and is not the size of a gradient. Use Hardest(keep=0.6) with Rarity(), or "
                "PredictedSizes() with the StreamPruner."
            )
        self.scorer, self.pruner, self.cost = scorer, pruner, float(cost)
        self._features: torch.Tensor | None = None
        self._kept: Kept | None = None
        self._why_none = "before the model's first forward pass"
        self._hook = layer.register_forward_hook(self._block)

    @_disable_dynamo  # the choice is made on the host, and kept
    def _block(self, layer: nn.Module, inputs: Any, output: Any) -> torch.Tensor | None:
        if not layer.training or not torch.is_grad_enabled():
            self._kept = None
            mode = "without gradients" if layer.training else "with the layer in evaluation mode"
            self._why_none = f"after a forward pass {mode}"
            return None
        if not isinstance(output, torch.Tensor) or output.dim() < 2:
            raise TypeError(
                f"Blocking() got {_described(output)} as the output of its {type(layer).__name__}, expected a tensor with "
                "a row for each sample. Name another layer, such as an nn.Identity() behind the tensor."
            )
        features = pooled(output.detach())
        if in_backward():  # a checkpoint runs the layer again
            self._check_again(features)
        else:
            self._features = features
            self._kept = self.pruner.select(self.scorer.score(features))
        return output[self.kept.index]

    def _check_again(self, features: torch.Tensor) -> None:
        """Raise if these are not the features that the last choice was made by."""
        before = self._features
        if (
            self._kept is None
            or before is None
            or before.shape != features.shape
            or not torch.allclose(before.cpu(), features.cpu(), 1e-2, 1e-4, equal_nan=True)
        ):
            raise RuntimeError(
                "Blocking() saw its layer run again in a backward pass, on other samples than in the last forward pass, "
                "whose choice alone is known. With checkpointing, call backward() before the next forward pass, or leave "
                "the layer out of the checkpoint."
            )

    @property
    def kept(self) -> Kept:
        """The samples of the last batch that the model has outputs for.

        Raises:
            RuntimeError: if nothing was left out in the last forward pass, because the layer was in evaluation
                mode or there were no gradients, or if there was none yet.
        """
        if self._kept is None:
            raise RuntimeError(
                f"Blocking.kept was read {self._why_none}, expected after one with gradients and the layer in training "
                "mode. Call model.train() and model(x) first. If the layers before are frozen in evaluation mode, name an "
                "nn.Identity() behind them; if a checkpoint runs the layer, pass it use_reentrant=False."
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


def _described(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


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
    Gaussians is the moving average of the squared distance to the nearest centre. By the paper's summaries, it
    moves the centres by the kept samples only, weights each Gaussian by its share of the samples, and sets the
    variance by Silverman's rule.

    Samples whose features are not finite have no rarity, NaN, and nothing is learned from them.

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
            known = features.square().sum(1).isfinite()
            if not known.cpu().any():
                return features.new_full((len(features),), torch.nan)
            self._centres = features[known][: self.count].clone()
        self._centres = self._centres.to(features.device)  # a state may come from another device
        squares = torch.cdist(features, self._centres).square()
        nearest = squares.min(1)
        known = nearest.values.isfinite()
        distances = nearest.values.where(known, 0).sum() / known.sum().clamp(min=1)
        if self._variance is not None:
            before = self._variance.to(features.device)
            distances = torch.where(known.any(), self._averaged(before, distances), before)
        self._variance = distances
        rarity = -torch.logsumexp(-squares / (2 * self._variance.clamp(min=1e-12)), 1)
        members = functional.one_hot(nearest.indices, len(self._centres)).to(features.dtype)
        members = members.where(known[:, None], 0)
        sizes = members.sum(0)[:, None]
        means = members.T @ features.where(known[:, None], 0) / sizes.clamp(min=1)
        moved = self._averaged(self._centres, means)
        self._centres = torch.where(sizes > 0, moved, self._centres)
        return rarity.where(known, torch.nan)

    def _averaged(self, before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        return self.momentum * before + (1 - self.momentum) * now

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {"centres": self._centres, "variance": self._variance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self._centres, self._variance = state["centres"], state["variance"]


class PredictedSizes:
    """Sizes of gradients, predicted from features by a linear model of their logarithm.

    A ridge regression on the samples seen so far, of which a batch's share fades by ``memory`` with each further
    batch. Until the first batch is learned from, every size is 1. Samples whose features, size or weight are not
    finite are not learned from; those whose features are not have no predicted size, NaN.

    Args:
        memory: the share of its weight that a batch keeps when the next one comes.
        ridge: the weight of the penalty on the coefficients, as a share of the features' variance.
    """

    def __init__(self, memory: float = 0.98, ridge: float = 1e-2) -> None:
        self.memory, self.ridge = memory, ridge
        self._products: torch.Tensor | None = None  # Σ w z zᵀ with z = (features, log size, 1)

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """The predicted size of each sample's gradient."""
        known = features.isfinite().all(1)
        if self._products is None:
            return torch.ones(len(features), device=features.device).where(known, torch.nan)
        # A state may come from another device.
        products = self._products = self._products.to(features.device)
        total = products[-1, -1]
        means = products[:-1, -1] / total
        covariance = products[:-1, :-1] / total - means[:, None] * means
        of_features, with_sizes = covariance[:-1, :-1], covariance[:-1, -1]
        width = len(with_sizes)
        penalty = self.ridge * of_features.diagonal().mean() + 1e-12
        eye = torch.eye(width, dtype=covariance.dtype, device=covariance.device)
        slopes = torch.linalg.solve(of_features + penalty * eye, with_sizes)
        predicted: torch.Tensor = means[-1] + (features.double() - means[:-1]) @ slopes
        return predicted.exp().float().where(known, torch.nan)

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
        known = rows.isfinite().all(1) & weights.isfinite()
        if not known.cpu().any():
            return
        rows = rows.where(known[:, None], 0)
        weights = weights.double().where(known, 0)
        products = (rows * weights[:, None]).T @ rows
        if self._products is not None:
            products += self.memory * self._products.to(products.device)
        self._products = products

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {"products": self._products}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self._products = state["products"]
