"""The size of a network's errors early in training: EL2N and GraNd.

Paul et al., *Deep Learning on a Data Diet* (NeurIPS 2021). Both are averages over R networks, each trained
for a few epochs: the paper's Table 1 has GraNd-4, EL2N-2 and EL2N-20. One network ranks noisily.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from infobatch.coresets.checks import Array, as_floats, as_labels, as_probabilities, one_hot


def error_norms(probabilities: Array, labels: Array) -> torch.Tensor:
    """‖p − y‖₂ for softmax outputs p and one-hot labels y.

    Args:
        probabilities: (samples, classes), or (networks, samples, classes) for an ensemble.
        labels: the class of each sample.

    Returns:
        The norms, in the shape of ``probabilities`` without the classes.

    Raises:
        TypeError, ValueError: if the arguments do not fit together.

    >>> error_norms([[1.0, 0.0], [0.2, 0.8]], [0, 0]).square()
    tensor([0.0000, 1.2800], dtype=torch.float64)
    """
    call = "error_norms()"
    values = as_floats(call, "probabilities", probabilities, ndim=(2, 3))
    if values.dim() == 3:
        return torch.stack([error_norms(network, labels) for network in values])
    outputs = as_probabilities(call, values)
    return (outputs - one_hot(call, labels, outputs)).square().sum(1).sqrt()


def el2n(error_norms: Array) -> torch.Tensor:
    """EL2N-R: the mean of ‖p − y‖ over R networks, or over the first epochs of one.

    Args:
        error_norms: (samples,) or (networks, samples); the function of that name computes them.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> el2n([[0.0, 1.0], [0.5, 0.0]]).tolist()
    [0.25, 0.5]
    """
    return _mean_over_networks("el2n()", "error_norms", error_norms)


def grand(gradient_norms: Array) -> torch.Tensor:
    """GraNd-R: the mean of ‖∇ℓ‖ over R networks.

    DeepCore's figures are for the last layer.

    Args:
        gradient_norms: (samples,) or (networks, samples): of the last layer, where they are ‖p − y‖ · √(1 + ‖h‖²)
            (``last_layer_gradients(…).squared_norms().sqrt()``), or of all parameters, by
            :func:`full_gradient_norms`, which is how the method is defined.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    return _mean_over_networks("grand()", "gradient_norms", gradient_norms)


def full_gradient_norms(
    model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """‖∇ℓ‖ over all parameters, one per sample, by ``torch.func``.

    The model is in evaluation mode, because batch normalisation has no per-sample gradient in
    training mode. Needs memory for one gradient of all parameters per sample of a batch.

    Args:
        model: a network that returns logits.
        batches: (inputs, labels).

    Returns:
        One norm per sample, in the order of the batches.

    Raises:
        ValueError: if there is not one class number per sample.
    """
    parameters = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    buffers = {name: value.detach() for name, value in model.named_buffers()}

    def loss(
        values: dict[str, torch.Tensor], sample: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        logits = functional_call(model, (values, buffers), (sample[None],))
        return nn.functional.cross_entropy(logits, label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    was_training = model.training
    model.eval()
    try:
        norms = []
        for inputs, labels in batches:
            gradient = gradients(parameters, inputs, as_labels("full_gradient_norms()", labels))
            squares = [value.flatten(1).square().sum(1) for value in gradient.values()]
            norms.append(torch.stack(squares).sum(0).sqrt())
    finally:
        model.train(was_training)
    return torch.cat(norms)


def _mean_over_networks(call: str, name: str, norms: Array) -> torch.Tensor:
    values = as_floats(call, name, norms, ndim=(1, 2))
    return values if values.dim() == 1 else values.mean(0)
