"""The effect of leaving a sample out on the trained network: influence functions and DP.

Both consider the last layer, in which cross-entropy is convex and its Hessian is known exactly:
H = mean of (diag(p) − p pᵀ) ⊗ [1, h] [1, h]ᵀ, plus a small multiple of the identity (``damping``),
because a softmax does not change when a constant is added to all logits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, as_probabilities, check_k
from infobatch.coresets.vectors import OuterProducts, by_columns, last_layer_gradients

Validation = tuple[Array, Array, Array]  # features, probabilities, labels
PRECISION = 1e-6


def influence(
    features: Array,
    probabilities: Array,
    labels: Array,
    *,
    validation: Validation | None = None,
    damping: float = 0.01,
    max_iterations: int = 500,
) -> torch.Tensor:
    """g_validationᵀ H⁻¹ g: how much the validation loss would rise without the sample.

    Koh and Liang, *Understanding Black-box Predictions via Influence Functions* (ICML 2017), whose influence
    of up-weighting a sample, −g_validationᵀ H⁻¹ g, is the negative: samples that lower the
    validation loss come first. H⁻¹ g_validation is found by conjugate gradients, without a
    matrix.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        probabilities: (samples, classes), the softmax outputs of a network.
        labels: the class of each sample.
        validation: (features, probabilities, labels) of held-out samples; by default, the training set itself, whose
            gradient is near zero once it is learned, so that the ranking is mostly noise.
        damping: is added to the diagonal of H.
        max_iterations: the largest number of steps of the conjugate gradients.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.
    """
    gradients = last_layer_gradients(features, probabilities, labels)
    outputs = as_probabilities("influence()", probabilities).to(gradients.right)
    held_out = gradients if validation is None else last_layer_gradients(*validation)
    target = held_out.left.T @ held_out.right / len(held_out)

    def hessian(direction: torch.Tensor) -> torch.Tensor:
        change = gradients.right @ direction.T
        change = outputs * (change - (outputs * change).sum(1, keepdim=True))
        return change.T @ gradients.right / len(gradients) + damping * direction

    solved = _conjugate_gradients(hessian, target, max_iterations)
    return ((gradients.right @ solved.T) * gradients.left).sum(1)


def _conjugate_gradients(
    product: Callable[[torch.Tensor], torch.Tensor], target: torch.Tensor, most: int
) -> torch.Tensor:
    """Solve product(x) = target for a symmetric positive product."""
    solution = torch.zeros_like(target)
    residual = target.clone()
    direction = residual.clone()
    error = float(residual.square().sum())
    goal = PRECISION**2 * error
    for _ in range(most):
        if error <= goal:
            break
        change = product(direction)
        step = error / float((direction * change).sum())
        solution += step * direction
        residual -= step * change
        before, error = error, float(residual.square().sum())
        direction = residual + (error / before) * direction
    return solution


def dp(
    features: Array, probabilities: Array, labels: Array, k: int, *, damping: float = 0.01
) -> Indices:
    """DP: leave out the set whose absence changes the parameters least (smallest ‖Σ H⁻¹ g‖).

    Yang et al., *Dataset Pruning: Reducing Training Data by Examining Generalization Influence* (ICLR 2023),
    implemented from memory, since we found no public code: the paper leaves out the largest set
    with ‖Σ H⁻¹ g‖ ≤ ε or, as here, a set of given size with the smallest norm. The set is found
    greedily, one sample at a time. H is approximated by a Kronecker product, mean(diag(p) − p pᵀ) ⊗
    mean([1, h] [1, h]ᵀ) (Martens and Grosse 2015): a full H⁻¹ g of each sample would take classes ×
    (features + 1) numbers.

    Args:
        features: (samples, numbers), such as the input of the last layer.
        probabilities: (samples, classes), the softmax outputs of a network.
        labels: the class of each sample.
        k: how many samples to choose.
        damping: is added to the diagonal of H.

    Returns:
        The indices of the remaining samples, the largest ‖H⁻¹ g‖ first.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.
    """
    call = "dp()"
    gradients = last_layer_gradients(features, probabilities, labels)
    count = len(gradients)
    k = check_k(call, k, count)
    effects = _parameter_changes(gradients, as_probabilities(call, probabilities), damping)
    squares = effects.squared_norms()
    costs = squares.clone()  # ‖effect‖² + 2 ⟨effect, sum of those left out⟩
    for _ in range(count - k):
        dropped = int(costs.argmin())
        costs += 2 * effects.inner(torch.tensor([dropped]))[0]
        costs[dropped] = torch.inf
    kept = np.flatnonzero(torch.isfinite(costs).cpu().numpy())
    return kept[np.argsort(-squares.cpu().numpy()[kept], kind="stable")]


def _parameter_changes(
    gradients: OuterProducts, outputs: torch.Tensor, damping: float
) -> OuterProducts:
    """H⁻¹ g of each sample, as factors."""
    outputs = outputs.to(gradients.right)
    between_classes = torch.diag(outputs.mean(0)) - outputs.T @ outputs / len(outputs)
    between_inputs = gradients.right.T @ gradients.right / len(outputs)
    return OuterProducts(
        _solved(between_classes, gradients.left, damping**0.5),
        _solved(between_inputs, gradients.right, damping**0.5),
    )


def _solved(matrix: torch.Tensor, rows: torch.Tensor, damping: float) -> torch.Tensor:
    damped = matrix + damping * torch.eye(len(matrix)).to(matrix)
    solved: torch.Tensor = torch.linalg.solve(damped, rows.T)
    return by_columns(solved.T)
