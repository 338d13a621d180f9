"""A UNet from diffusers with its noise schedule, and images drawn from it."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from torch import nn

from infobatch.scoring import TimestepMeans

NUM_TIMESTEPS = 1000
SIDE = 16


class Denoiser(nn.Module):
    """The network and the running mean loss of each timestep, both saved in checkpoints."""

    def __init__(self, prediction: str) -> None:
        super().__init__()
        self.unet = UNet2DModel(
            sample_size=SIDE,
            in_channels=1,
            out_channels=1,
            block_out_channels=(16, 32, 64),
            down_block_types=("DownBlock2D", "DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D", "UpBlock2D"),
            layers_per_block=1,
            norm_num_groups=8,
            attention_head_dim=16,
        )
        self.scheduler = DDPMScheduler(
            num_train_timesteps=NUM_TIMESTEPS, prediction_type=prediction
        )
        self.timestep_means = TimestepMeans(NUM_TIMESTEPS)

    def forward(self, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """What the network predicts: the noise, the velocity or the clean image."""
        predicted: torch.Tensor = self.unet(noisy, timesteps).sample
        return predicted

    def get_extra_state(self) -> dict[str, Any]:
        """The running means, for ``state_dict``."""
        return self.timestep_means.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The running means, from ``load_state_dict``."""
        self.timestep_means.load_state_dict(state)


def denoiser_of(model: nn.Module) -> Denoiser:
    """The denoiser itself, with or without DistributedDataParallel around it."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, Denoiser)
    return inner


@torch.no_grad()
def draw_images(model: Denoiser, count: int, *, steps: int, seed: int) -> torch.Tensor:
    """Draw images by DDIM, from the same noise for every model, so that they are comparable."""
    sampler = DDIMScheduler.from_config(model.scheduler.config, clip_sample=True)
    sampler.set_timesteps(steps)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, SIDE, SIDE, generator=generator).to(device)
    for step in sampler.timesteps:
        predicted = model(images, step.expand(count).to(device))
        images = sampler.step(predicted, step, images).prev_sample
    return images
