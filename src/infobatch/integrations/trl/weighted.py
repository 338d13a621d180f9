"""Weights that multiply the gradients of rows, whatever the form of the loss."""

from __future__ import annotations

from typing import Any

import torch

from infobatch import Plan
from infobatch.integrations.transformers.trainer import PrunedEpochs


class WeightedRows(PrunedEpochs):
    """The part of a mixin that knows the weight of each sample in the running epoch."""

    _weights: tuple[Plan, torch.Tensor] | None = None  # by sample, of one epoch

    def _weights_of(self, samples: torch.Tensor) -> torch.Tensor:
        plan = self.pruner.plan
        if self._weights is None or self._weights[0] is not plan:
            weights = torch.ones(plan.num_samples)
            weights[plan.order] = plan.weights.float()
            self._weights = plan, weights.to(samples.device)
        return self._weights[1][samples]


class _ScaleGradient(torch.autograd.Function):
    """Returns a tensor unchanged, and multiplies the gradient of each row by a weight."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the same values."""
        ctx.save_for_backward(weights)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the rows' gradients, weighted."""
        (weights,) = ctx.saved_tensors
        return gradient * weights.to(gradient.dtype)[:, None], None


def scale_gradient(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the same values, with gradients multiplied by one weight per row."""
    scaled: torch.Tensor = _ScaleGradient.apply(rows, weights)  # type: ignore[no-untyped-call]
    return scaled
