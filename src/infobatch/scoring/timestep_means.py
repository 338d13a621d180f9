"""The running mean loss of each timestep, kept on the device where the losses are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from infobatch.checks import check_count
from infobatch.scoring.checks import check_range
from infobatch.transfer import send


class TimestepMeans:
    """Running means of the loss over bins of neighbouring timesteps, for :func:`diffusion`.

    Each rank of a distributed job keeps its own. Save it in a checkpoint with ``state_dict()``,
    which returns plain tensors.

    Args:
        num_timesteps: the scheduler's ``num_train_timesteps``; 1 for a continuous time in [0, 1].
        bins: neighbouring timesteps share a mean; fewer bins fill sooner, more are finer.
        momentum: the share of a mean that remains at each new loss: 0.99 is a memory of about 100
            losses per bin, 1 of all losses.

    Raises:
        ValueError: if ``num_timesteps`` or ``bins`` is below 1, or ``momentum`` not in [0, 1].

    >>> means = TimestepMeans(1000)
    >>> means.update(torch.tensor([2.0, 4.0]), torch.tensor([5, 5]))
    >>> means.relative(torch.tensor([6.0, 6.0]), torch.tensor([5, 800]))
    tensor([2., nan])
    """

    def __init__(self, num_timesteps: int, *, bins: int = 50, momentum: float = 0.99) -> None:
        self.num_timesteps = check_count(
            "TimestepMeans(): num_timesteps", num_timesteps, "a schedule has at least one step"
        )
        self.bins = check_count("TimestepMeans(): bins", bins, "there is one mean per bin")
        self.momentum = check_range("TimestepMeans()", "momentum", momentum, 0.0, 1.0)
        # The mean is total / weight: both decay alike, so that it is right from the first loss on.
        self._totals = torch.zeros(self.bins)
        self._weights = torch.zeros(self.bins)

    def relative(self, losses: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Divide losses by the mean of their timesteps.

        Args:
            losses: (B,).
            timesteps: (B,), the steps at which the losses were computed.

        Returns:
            (B,), NaN where no loss of that bin has been seen. Nothing is recorded.
        """
        self._follow(losses.device)
        bins = self._bins_of(timesteps, losses.device)
        means = (self._totals / self._weights)[bins]  # 0 / 0 gives the desired NaN
        return losses.detach() / means

    def update(self, losses: torch.Tensor, timesteps: torch.Tensor) -> None:
        """Add a batch; losses that are not finite are ignored.

        Args:
            losses: (B,).
            timesteps: (B,), the steps at which the losses were computed.
        """
        self._follow(losses.device)
        losses = losses.detach().float()
        counts = losses.isfinite()
        bins = self._bins_of(timesteps, losses.device)
        # A sum over a small table rather than a scatter, for the same bits in every run on a GPU.
        members = (bins.unsqueeze(1) == torch.arange(self.bins, device=losses.device)).float()
        number = (members * counts.unsqueeze(1)).sum(0)
        sums = (members * losses.where(counts, 0).unsqueeze(1)).sum(0)
        kept = self.momentum**number
        fresh = 1 - kept if self.momentum < 1 else number
        self._totals = self._totals * kept + sums / number.clamp_min(1) * fresh
        self._weights = self._weights * kept + fresh

    def state_dict(self) -> dict[str, Any]:
        """Return the means, to continue from.

        Returns:
            Plain tensors by name.
        """
        return {"totals": self._totals.clone(), "weights": self._weights.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state with the same number of bins.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: if the state has another number of bins.
        """
        for name in ("totals", "weights"):
            value = state.get(name)
            if not isinstance(value, torch.Tensor) or value.shape != (self.bins,):
                got = (
                    tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                )
                raise ValueError(
                    f"TimestepMeans.load_state_dict() got {got} as {name!r}, expected a tensor of "
                    f"shape ({self.bins},). Build it with the bins that the state was taken with."
                )
        self._totals, self._weights = state["totals"].clone(), state["weights"].clone()

    def _follow(self, device: torch.device) -> None:
        if self._totals.device != device:
            self._totals, self._weights = send(self._totals, device), send(self._weights, device)

    def _bins_of(self, timesteps: torch.Tensor, device: torch.device) -> torch.Tensor:
        bins = send(timesteps, device) * self.bins / self.num_timesteps
        return bins.long().clamp(0, self.bins - 1)
