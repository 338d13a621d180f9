"""Classification: cross-entropy, multi-label binary cross-entropy, focal loss."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch.nn import functional

from infobatch.per_sample import GRADIENT, PerSample
from infobatch.scoring.checks import check_indices, check_shape, check_tensor
from infobatch.scoring.logit_gradients import root_means, squared_norms
from infobatch.scoring.per_label import (
    add_up_cross_entropy,
    check_class_weight,
    sizes_of_counted,
)
from infobatch.scoring.reduction import (
    at_least_float32,
    by_sample,
    own_means,
    shares,
    with_sizes,
)
from infobatch.transfer import send

Score = Literal["loss", "gradient"]


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    score: Score = "loss",
) -> PerSample:
    """Cross-entropy; ``losses.mean()`` is ``torch.nn.functional.cross_entropy`` of the same arguments.

    PyTorch's mean with class weights divides by the sum of the targets' weights, not by the batch
    size, and so do the losses here. The score is the sample's loss with ``reduction="none"``,
    including its class weight; if a sample has several labels, the mean over them.

    With ``score="gradient"`` the score is the size of that loss's gradient with respect to the logits,
    which without weights and smoothing is ‖softmax − target‖; if a sample has several labels, the
    root mean square over them, so that it does not depend on their number.
    ``NoisePrune(gradient="score")`` and ``ImportancePrune(gradient="score")`` can use it; it costs
    a second softmax.

    With class weights, smoothing, soft targets or several labels, ``extras["gradient"]`` has the size of
    the gradient of a sample's part of the loss: ‖softmax − target‖, with the weights; over many
    labels, their parts Σ (1 − p(label))² under the root.

    A sample whose label is ``ignore_index`` has loss 0 and score NaN, which means that it keeps its
    old score. A batch with only such samples has loss 0, whereas torch returns NaN.

    Args:
        logits: (B, C), or (B, C, …) with a label for each position.
        targets: class indices (B, …), or probabilities in the shape of the logits.
        weight: (C,), one per class.
        label_smoothing, ignore_index: as in torch; soft targets have no label to ignore.
        score: what the samples are ranked by, ``"loss"`` or ``"gradient"``.

    Returns:
        One loss and one score per sample, (B,) each.

    Raises:
        ValueError: if the shapes of logits, targets and weight do not fit, or ``score`` is unknown.
        TypeError: if the logits are not floating point numbers, or class indices not integers.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> cross_entropy(logits, torch.tensor([0, 0])).scores
    tensor([0.1269, 2.1269])
    >>> cross_entropy(logits, torch.tensor([0, 0]), score="gradient").scores
    tensor([0.1686, 1.2456])
    """
    call = "cross_entropy()"
    if score not in get_args(Score):
        raise ValueError(
            f"cross_entropy(score=…) got {score!r}, expected 'loss' or 'gradient' (the size of the "
            "loss's gradient with respect to the logits)."
        )
    check_tensor(call, "logits", logits, "(B, C)", least_dims=2)
    soft = isinstance(targets, torch.Tensor) and targets.shape == logits.shape
    if soft:
        result = _soft_cross_entropy(call, logits, targets, weight, label_smoothing)
    else:
        places = (logits.shape[0], *logits.shape[2:])
        remedy = (
            f"Pass class indices of that shape, or probabilities of shape {tuple(logits.shape)}."
        )
        check_shape(call, "targets", targets, places, remedy)
        counted = add_up_cross_entropy(
            call,
            logits,
            targets,
            weight=weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
        )
        losses, scores = (
            shares(counted.sums, counted.divisors.sum()),
            own_means(counted.sums, counted.counts),
        )
        divisors = counted.divisors
        result = PerSample(losses, scores, counts=divisors)
        if logits.dim() > 2 or weight is not None or label_smoothing:
            result = with_sizes(losses, scores, lambda: sizes_of_counted(counted), divisors)
    if score == "loss":
        return result
    squares = squared_norms(logits, targets, weight=weight, label_smoothing=label_smoothing)
    counts = (
        torch.ones_like(squares, dtype=torch.bool) if soft else by_sample(targets) != ignore_index
    )
    norms = root_means(squares, counts)
    return PerSample(result.losses, norms, result.extras or {GRADIENT: norms}, result.counts)


def _soft_cross_entropy(
    call: str,
    logits: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor | None,
    label_smoothing: float,
) -> PerSample:
    """Cross-entropy with probabilities as targets, none of which are ignored."""
    if not targets.is_floating_point():
        raise TypeError(
            f"{call} got targets of {targets.dtype} in the shape of the logits, expected "
            "probabilities. For one-hot labels pass targets.float(), or targets.argmax(1)."
        )
    logits = at_least_float32(logits)
    losses = functional.cross_entropy(
        logits,
        targets.to(logits.dtype),
        weight=check_class_weight(call, weight, logits),
        label_smoothing=label_smoothing,
        reduction="none",
    )
    means = by_sample(losses).mean(1)

    def squares() -> torch.Tensor:
        return squared_norms(logits, targets, weight=weight, label_smoothing=label_smoothing).sum(1)

    return with_sizes(means, means.detach(), squares)


def binary_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
) -> PerSample:
    """Multi-label or binary; ``losses.mean()`` is torch's ``binary_cross_entropy_with_logits``.

    Args:
        logits: (B,) or (B, C).
        targets: of the same shape, in [0, 1]; bool and int labels are fine.
        weight, pos_weight: as in torch, broadcast against the logits.

    Returns:
        One loss and one score per sample, (B,) each: the mean over its labels, as both.

    Raises:
        ValueError: if the targets do not have the shape of the logits.
        TypeError: if the logits are not floating point numbers.

    >>> binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3)).losses
    tensor([0.6931, 0.6931])
    """
    call = "binary_cross_entropy()"
    check_tensor(call, "logits", logits, "(B,) or (B, C)", least_dims=1)
    check_shape(
        call, "targets", targets, tuple(logits.shape), "Give both the same shape (squeeze(1)?)."
    )
    logits = at_least_float32(logits)
    targets = targets.to(logits.dtype)
    weight = None if weight is None else send(weight, logits.device, logits.dtype)
    pos_weight = None if pos_weight is None else send(pos_weight, logits.device, logits.dtype)
    losses = functional.binary_cross_entropy_with_logits(
        logits, targets, weight=weight, pos_weight=pos_weight, reduction="none"
    )
    means = by_sample(losses).mean(1)

    def squares() -> torch.Tensor:
        p = logits.sigmoid()
        missing = (1 - p) * targets
        slopes = p * (1 - targets) - (missing if pos_weight is None else missing * pos_weight)
        return by_sample(slopes if weight is None else slopes * weight).square().sum(1)

    return with_sizes(means, means.detach(), squares)


def focal(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    gamma: float = 2.0,
    alpha: torch.Tensor | float | None = None,
    ignore_index: int = -100,
) -> PerSample:
    """Focal loss, (1 − p)^gamma times the cross-entropy; ``losses.mean()`` is its plain mean.

    The type of the targets decides: integer targets (B,) are classes, and p is from the softmax;
    floating point targets in the shape of the logits are multi-hot, and each output has its own
    sigmoid (with the mean reduction this is torchvision's ``sigmoid_focal_loss``).

    Args:
        logits: (B, C); for multi-hot targets any (B, …).
        targets: classes, (B,), or multi-hot targets in the shape of the logits.
        gamma: how strongly easy samples are down-weighted; 0 is the plain cross-entropy.
        alpha: with classes, one factor per class, (C,), or one for all; with multi-hot targets, the
            factor of the positives, while the negatives have 1 − alpha.
        ignore_index: the class that is not counted, as in :func:`cross_entropy`.

    Returns:
        One loss and one score per sample, (B,) each.

    Raises:
        ValueError: if the shapes of logits, targets and alpha do not fit.
        TypeError: if the logits are not floating point numbers.

    >>> focal(torch.zeros(1, 2), torch.tensor([0])).losses  # (1 - 0.5)^2 times log 2
    tensor([0.1733])
    """
    call = "focal()"
    check_tensor(call, "logits", logits, "(B, C)", least_dims=1)
    if isinstance(targets, torch.Tensor) and targets.is_floating_point():
        remedy = "Multi-hot targets have the shape of the logits; class indices are integers."
        check_shape(call, "targets", targets, tuple(logits.shape), remedy)
        return _sigmoid_focal(logits, targets, gamma, alpha)
    check_tensor(call, "logits", logits, "(B, C)", least_dims=2)
    remedy = "Pass class indices of that shape, or multi-hot floats in the shape of the logits."
    check_shape(call, "targets", targets, (logits.shape[0], *logits.shape[2:]), remedy)
    targets = check_indices(call, "targets", targets, remedy)
    losses = functional.cross_entropy(
        at_least_float32(logits), targets, ignore_index=ignore_index, reduction="none"
    )
    plain = losses.detach()
    losses = losses * _fading(losses, gamma)
    counts = targets != ignore_index
    if isinstance(alpha, torch.Tensor) and alpha.dim():
        factors = check_class_weight("focal(alpha=…)", alpha, losses.new_empty(logits.shape[:2]))
        assert factors is not None
        alpha = factors[torch.where(counts, targets, 0)]
    if alpha is not None:
        losses = losses * alpha
    sums, number = by_sample(losses).sum(1), by_sample(counts).sum(1)

    def squares() -> torch.Tensor:
        slopes = _focal_slopes(plain, gamma)
        slopes = by_sample(slopes if alpha is None else slopes * alpha)
        return torch.where(number > 0, slopes.square().sum(1), torch.nan)

    return with_sizes(shares(sums, number.sum()), own_means(sums, number), squares, number)


def _focal_slopes(cross_entropies: torch.Tensor, gamma: float) -> torch.Tensor:
    """The label's part of the focal loss's gradient with respect to the logits, without alpha."""
    p, missed = torch.exp(-cross_entropies), -torch.expm1(-cross_entropies)
    grown = gamma * _power(missed, gamma - 1) * p * cross_entropies if gamma else 0.0
    return missed * (_power(missed, gamma) + grown)


def _sigmoid_focal(
    logits: torch.Tensor, targets: torch.Tensor, gamma: float, alpha: torch.Tensor | float | None
) -> PerSample:
    """The focal loss of outputs with a sigmoid each."""
    logits = at_least_float32(logits)
    targets = targets.to(logits.dtype)
    losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p = torch.sigmoid(logits)
    missed = p * (1 - targets) + (1 - p) * targets
    plain = losses.detach()
    losses = losses * _power(missed, gamma)
    factors: torch.Tensor | None = None
    if alpha is not None:
        if isinstance(alpha, torch.Tensor):
            alpha = send(alpha, logits.device, logits.dtype)
        factors = alpha * targets + (1 - alpha) * (1 - targets)
        losses = losses * factors

    def squares() -> torch.Tensor:
        fading = gamma * _power(missed, gamma - 1) if gamma else torch.zeros_like(missed)
        falling = plain * fading * (1 - 2 * targets) * p * (1 - p)
        slopes = (p - targets) * _power(missed, gamma) + falling
        return by_sample(slopes if factors is None else slopes * factors).square().sum(1)

    means = by_sample(losses).mean(1)
    return with_sizes(means, means.detach(), squares)


def _fading(losses: torch.Tensor, gamma: float) -> torch.Tensor:
    """(1 − p)^gamma from the cross-entropy −log p."""
    return _power(-torch.expm1(-losses), gamma)


def _power(missed: torch.Tensor, gamma: float) -> torch.Tensor:
    # At 0 the slope of a power below 1 is infinite, and infinity times a loss of 0 is NaN.
    return missed.clamp_min(torch.finfo(missed.dtype).tiny) ** gamma
