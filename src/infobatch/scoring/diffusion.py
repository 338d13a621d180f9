"""Diffusion models: the denoising loss, and a score that corrects for the timestep."""

from __future__ import annotations

import torch

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_shape, check_tensor
from infobatch.scoring.reduction import at_least_float32, by_sample, with_sizes
from infobatch.scoring.timestep_means import TimestepMeans
from infobatch.transfer import send

_PREDICTION_TYPES = ("epsilon", "v_prediction", "sample")


def diffusion(
    prediction: torch.Tensor,
    target: torch.Tensor,
    timesteps: torch.Tensor,
    *,
    weights: torch.Tensor | None = None,
    timestep_means: TimestepMeans | None = None,
) -> PerSample:
    """Squared error of the prediction; ``losses.mean()`` is ``F.mse_loss``, or its weighted form.

    The error is large at some noise levels and small at others, so the loss at a single random
    timestep mostly shows which timestep was drawn. With ``timestep_means`` the score is the squared
    error divided by the running mean at its timestep: above 1 is harder than usual at that noise
    level. The loss does not change. Like the running mean of ``torch.nn.functional.batch_norm``,
    the object is read and then updated with this batch: scores depend on earlier batches, never on
    this one. A sample at a timestep about which nothing is known yet has score NaN: it keeps its
    old score. So is the size of the gradient, ``extras["gradient"]``, the root of the score: the sample's
    next gradient will be that of another timestep.

    Args:
        prediction: (B, …), the model's output.
        target: of the same shape: the noise, the clean sample or the velocity, whatever the model is
            trained to predict (see :func:`diffusion_target`).
        timesteps: (B,), the steps that were drawn.
        weights: (B,), factors of the losses, for instance from :func:`min_snr_weights`.
        timestep_means: one object for the whole run. Without it the score is the loss itself.

    Returns:
        One loss and one score per sample, (B,) each.

    Raises:
        ValueError: if the shapes of prediction, target, timesteps and weights do not fit.
        TypeError: if the prediction is not a tensor of floating point numbers.

    >>> means = TimestepMeans(1000)
    >>> for timesteps in torch.tensor([[3, 800], [3, 500]]):
    ...     result = diffusion(torch.ones(2, 4), torch.zeros(2, 4), timesteps, timestep_means=means)
    >>> result.scores
    tensor([1., nan])
    """
    call = "diffusion()"
    check_tensor(call, "prediction", prediction, "(B, …)", least_dims=2)
    size = prediction.shape[0]
    check_shape(
        call,
        "target",
        target,
        tuple(prediction.shape),
        "Compare like with like: split off a learned variance first.",
    )
    check_shape(call, "timesteps", timesteps, (size,), "Pass one timestep per sample.")
    prediction = at_least_float32(prediction)
    errors = by_sample((prediction - target.to(prediction.dtype)).square()).mean(1)
    losses = errors
    if weights is not None:
        check_shape(call, "weights", weights, (size,), "Pass one weight per sample.")
        weights = send(weights.detach(), errors.device, errors.dtype)
        losses = errors * weights
    if timestep_means is None:
        return with_sizes(
            losses,
            losses.detach(),
            lambda: errors if weights is None else errors * weights.square(),
        )
    # The weights depend only on the timestep and would cancel, so the plain errors are compared.
    scores = timestep_means.relative(errors.detach(), timesteps)
    timestep_means.update(errors.detach(), timesteps)
    return with_sizes(losses, scores, lambda: scores)


def diffusion_target(
    prediction_type: str,
    clean: torch.Tensor,
    noise: torch.Tensor,
    timesteps: torch.Tensor,
    alphas_cumprod: torch.Tensor,
) -> torch.Tensor:
    """The target of a model with a ``prediction_type``, by diffusers' names.

    ``"epsilon"`` the noise, ``"sample"`` the clean sample, ``"v_prediction"`` the velocity
    √ᾱ·noise − √(1−ᾱ)·clean.

    Args:
        prediction_type: ``scheduler.config.prediction_type``.
        clean: (B, …), the samples without noise.
        noise: of the same shape, the noise that was added.
        timesteps: (B,), the steps that were drawn.
        alphas_cumprod: ``scheduler.alphas_cumprod``, ᾱ of every step.

    Returns:
        The target, in the shape of ``clean``.

    Raises:
        ValueError: if ``prediction_type`` is none of the three.
    """
    _check_prediction_type("diffusion_target()", prediction_type)
    if prediction_type == "epsilon":
        return noise
    if prediction_type == "sample":
        return clean
    steps = send(timesteps, clean.device)
    signal = send(alphas_cumprod, clean.device)[steps].to(clean.dtype)
    signal = signal.reshape(-1, *[1] * (clean.dim() - 1))
    return signal.sqrt() * noise - (1 - signal).sqrt() * clean


def min_snr_weights(
    alphas_cumprod: torch.Tensor,
    timesteps: torch.Tensor,
    gamma: float = 5.0,
    prediction_type: str = "epsilon",
) -> torch.Tensor:
    """The loss weights of min-SNR (Hang et al., 2023), as in diffusers' training scripts.

    With SNR = ᾱ / (1 − ᾱ): min(SNR, gamma) / SNR for the noise, / (SNR + 1) for the velocity, and
    min(SNR, gamma) itself for the clean sample. A last step without any signal gets weight 1 for
    the noise, because dividing 0 by 0 would give NaN.

    Args:
        alphas_cumprod: ``scheduler.alphas_cumprod``, ᾱ of every step.
        timesteps: (B,), the steps that were drawn.
        gamma: the largest signal-to-noise ratio that counts.
        prediction_type: ``scheduler.config.prediction_type``.

    Returns:
        One weight per sample, (B,).

    Raises:
        ValueError: if ``prediction_type`` is none of diffusers' three.

    >>> min_snr_weights(torch.tensor([0.99, 0.5, 0.1]), torch.tensor([0, 1, 2]))
    tensor([0.0505, 1.0000, 1.0000])
    """
    _check_prediction_type("min_snr_weights()", prediction_type)
    alphas = at_least_float32(send(alphas_cumprod, timesteps.device)[timesteps])
    ratio = alphas / (1 - alphas)
    if prediction_type == "epsilon":
        return (gamma / ratio).clamp_max(1)
    capped = ratio.clamp_max(gamma)
    return capped / (ratio + 1) if prediction_type == "v_prediction" else capped


def _check_prediction_type(call: str, prediction_type: str) -> None:
    if prediction_type not in _PREDICTION_TYPES:
        raise ValueError(
            f"{call} got prediction_type={prediction_type!r}, expected one of "
            f"{', '.join(map(repr, _PREDICTION_TYPES))}, as in scheduler.config.prediction_type."
        )
