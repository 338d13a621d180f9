"""No scoring function waits for the device, whatever the user has left on the host."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from infobatch import PerSample, scoring
from simulated_device import DEVICE, on_host, recording, unrecorded

B, C, T = 12, 5, 6


def make(seed=0):
    """Arguments for all of the functions; on the device are those that a training step has there."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    integers = lambda high, *shape: torch.randint(high, shape, generator=g)  # noqa: E731
    return {
        "logits": normal(B, C),
        "targets": integers(C, B),
        "soft": normal(B, C).softmax(1),
        "multi_hot": integers(2, B, C).float(),
        "pixels": normal(B, C, 4, 4),
        "masks": integers(C, B, 4, 4),
        "tokens": normal(B, T, C),
        "labels": integers(C, B, T),
        "values": normal(B, 3),
        "measured": normal(B, 3),
        "quantiles": normal(B, 3, 2),
        "patches": normal(B, 4, 3),
        "hidden": integers(2, B, 4),
        "images": normal(B, 8),
        "texts": normal(B, 8),
        "parts": {"box": normal(B).exp(), "cls": normal(B).exp()},
        "by_image": [{"box": normal().exp()} for _ in range(B)],
        "noise": normal(B, 3),
        "steps": integers(100, B),
        "loss": normal().exp(),
    }


def moved(value, device, dtype=None):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(device, dtype).requires_grad_()
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(entry, device, dtype) for name, entry in value.items()}
    return [moved(entry, device, dtype) for entry in value]


WEIGHT = torch.linspace(0.5, 2.0, C)  # these are on the host, as users leave them
PARTNERS = torch.randperm(B, generator=torch.Generator().manual_seed(1))
LAM = torch.linspace(0, 1, B)
ALPHAS = torch.linspace(0.99, 0.01, 100)
BOUNDARIES = torch.tensor([0, 4, 4, 30, B * T])
COUNTS = torch.arange(B)
PREVIOUS = torch.rand(B)


@dataclass(frozen=True)
class Case:
    call: Any  # of a namespace of arguments
    kernels: int  # at most
    copies: int = 0  # to the device, of what is on the host


def diffusion(a, means=None):
    weights = scoring.min_snr_weights(ALPHAS, a["steps"])
    target = scoring.diffusion_target("v_prediction", a["values"], a["noise"], a["steps"], ALPHAS)
    return scoring.diffusion(
        a["measured"], target, a["steps"], weights=weights, timestep_means=means
    )


CASES = {
    "cross_entropy": Case(lambda a: scoring.cross_entropy(a["logits"], a["targets"]), 21),
    "cross_entropy, class weights": Case(
        lambda a: scoring.cross_entropy(a["logits"], a["targets"], weight=WEIGHT), 25, 1
    ),
    "cross_entropy, soft": Case(
        lambda a: scoring.cross_entropy(a["logits"], a["soft"], weight=WEIGHT), 10, 1
    ),
    "cross_entropy, gradient": Case(
        lambda a: scoring.cross_entropy(
            a["logits"], a["targets"], weight=WEIGHT, score="gradient", label_smoothing=0.1
        ),
        57,
        2,
    ),
    "binary_cross_entropy": Case(
        lambda a: scoring.binary_cross_entropy(
            a["logits"], a["multi_hot"], weight=WEIGHT, pos_weight=WEIGHT
        ),
        6,
        2,
    ),
    "focal": Case(lambda a: scoring.focal(a["logits"], a["targets"], alpha=WEIGHT), 31, 1),
    "focal, multi-hot": Case(
        lambda a: scoring.focal(a["logits"], a["multi_hot"], alpha=WEIGHT), 21, 1
    ),
    "mixed_cross_entropy": Case(
        lambda a: scoring.mixed_cross_entropy(a["logits"], a["targets"], PARTNERS, LAM), 31, 2
    ),
    "segmentation": Case(
        lambda a: scoring.segmentation(
            a["pixels"], a["masks"], weight=WEIGHT, auxiliary=[(a["pixels"], 0.4)]
        ),
        56,
        2,
    ),
    "masked_autoencoding": Case(
        lambda a: scoring.masked_autoencoding(
            a["patches"], a["patches"] + 1, a["hidden"], normalise=True
        ),
        29,
    ),
    "diffusion": Case(diffusion, 22, 2),
    "diffusion, timestep means": Case(lambda a: diffusion(a, scoring.TimestepMeans(100)), 55, 4),
    "causal_lm": Case(lambda a: scoring.causal_lm(a["tokens"], a["labels"]), 24),
    "causal_lm, num_items": Case(
        lambda a: scoring.causal_lm(a["tokens"], a["labels"], num_items=70), 17
    ),
    "causal_lm, num_items as a tensor": Case(
        lambda a: scoring.causal_lm(a["tokens"], a["labels"], num_items=torch.tensor(70)), 17
    ),
    "causal_lm, boundaries": Case(
        lambda a: scoring.causal_lm(a["tokens"], a["labels"], boundaries=BOUNDARIES), 33, 1
    ),
    "token_losses": Case(lambda a: scoring.token_losses(a["tokens"], a["labels"]), 7),
    "per_sequence": Case(lambda a: scoring.per_sequence(a["tokens"][..., 0], a["labels"] >= 0), 18),
    "detection": Case(lambda a: scoring.detection(a["parts"], {"box": 2.0}, counts=COUNTS), 24, 1),
    "detection, image by image": Case(lambda a: scoring.detection(a["by_image"]), 8),
    "contrastive": Case(
        lambda a: scoring.contrastive(a["images"], a["texts"], temperature=torch.tensor(0.1)), 19
    ),
    "mse": Case(lambda a: scoring.mse(a["values"], a["measured"], scale=WEIGHT[:3]), 10, 1),
    "huber": Case(lambda a: scoring.huber(a["values"], a["measured"], scale=0.5), 8),
    "quantile": Case(lambda a: scoring.quantile(a["values"], a["measured"], 0.9), 9),
    "quantile, several": Case(
        lambda a: scoring.quantile(a["quantiles"], a["measured"], [0.1, 0.9]), 11, 1
    ),
    "scalar": Case(lambda a: scoring.scalar(a["loss"], B, previous=PREVIOUS), 8, 1),
}
# Not part of a training step, or parts of others.
APART = {"PerSample", "TimestepMeans", "diffusion_target", "min_snr_weights", "sequence_boundaries"}


def test_every_function_has_a_case():
    covered = {name.split(",")[0] for name in CASES}
    assert covered | APART == set(scoring.__all__)


def tensors(result):
    return [result.losses, result.scores] if isinstance(result, PerSample) else [result]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_nothing_waits_and_the_bits_are_those_of_the_cpu(name, dtype):
    case, arguments = CASES[name], make()
    there = moved(arguments, DEVICE, dtype)
    with recording() as backward:
        with recording() as log:
            result = case.call(there)
        tensors(result)[0].mean().backward()
    assert backward.waits == []
    assert log.lost == []
    assert len(log.to_device) <= case.copies
    assert len(log.kernels) <= case.kernels, log.kernels
    with unrecorded():
        expected = case.call(moved(arguments, "cpu", dtype))
    for value, other in zip(tensors(result), tensors(expected), strict=True):
        assert torch.equal(on_host(value.detach()).nan_to_num(-1), other.nan_to_num(-1))
        assert value.dtype is torch.float32


@pytest.mark.parametrize("name", CASES)
def test_half_precision_is_widened_under_autocast(name):
    """Without being asked to: losses in half precision are often exactly 0, or exactly equal."""
    with torch.autocast("cpu", torch.bfloat16):
        results = tensors(CASES[name].call(moved(make(), "cpu", torch.bfloat16)))
    assert all(value.dtype is torch.float32 for value in results)


def test_losses_and_labels_of_the_host_do_not_wait_either():
    a, b = moved(make(), DEVICE), make()
    with recording() as log:
        scoring.causal_lm(a["tokens"], b["labels"])
        scoring.mse(a["values"], b["measured"])
        scoring.diffusion(a["measured"], a["values"], b["steps"], weights=LAM)
    assert log.waits == []
    assert log.lost == []
