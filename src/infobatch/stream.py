"""Pruning within the batch, for data that is seen once: score all of it, train on a part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from infobatch.checks import check_count, check_losses
from infobatch.plan.importance import slope_for_budget, slope_for_noise, systematic
from infobatch.savings import FORWARD, StreamSavings

_VERSION = 1
_SMALLEST = 1e-20  # replaces a score of 0, relative to the largest: probabilities stay above 0
_SHARES = (1e-3, 1 - 1e-3)  # bounds: a share that is owed may exceed what can be kept
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Kept:
    """The samples of a batch that :meth:`StreamPruner.select` keeps.

    Attributes:
        index: the positions of the kept samples in the batch, in ascending order.
        weights: one per kept sample: 1 over the probability with which it was kept.
        batch_size: the number of samples in the whole batch.
    """

    index: torch.Tensor
    weights: torch.Tensor
    batch_size: int

    def __len__(self) -> int:
        return len(self.index)

    def mean(self, losses: torch.Tensor) -> torch.Tensor:
        """The loss for ``backward()``, from one loss for each kept sample.

        The weighted sum, divided by the size of the whole batch: on average over the draws this is
        the mean loss of the whole batch, and so is its gradient.

        Args:
            losses: one per kept sample, in the order of ``index``.

        Returns:
            A scalar, differentiable, in the losses' dtype.

        Raises:
            ValueError: if there is not one loss per kept sample.
        """
        check_losses("Kept.mean()", losses)
        if losses.shape != self.weights.shape:
            raise ValueError(
                f"Kept.mean() got {len(losses)} losses, expected one for each of the {len(self)} kept "
                "samples. Pass x[kept.index] through the model, and not the whole batch."
            )
        return (losses.float() @ self.weights).to(losses.dtype) / self.batch_size


class StreamPruner:
    """Chooses what to train on from each batch, by scores from a forward pass.

    A sample is kept with probability ``p = floor + (1 - floor) * min(1, c * score)`` and has the
    weight ``1 / p``, so that the expected gradient is that of the whole batch. ``c`` follows the
    scores of the last ``window`` samples such that a share ``keep`` is kept in the long run: a
    batch of hard samples keeps more and an easy one fewer, but each at least one sample.

    Samples whose score is NaN, infinite or negative are kept with weight 1, because nothing is
    known about them, and counted in ``savings.unscored``.

    Args:
        keep: the share of the samples to train on. Scoring costs a third of a step per sample, so
            only shares below two thirds save anything.
        max_noise: by how much pruning may raise the gradient noise, ``Σ score²/p ÷ Σ score² − 1`` over
            the window, with the score standing for the size of a sample's gradient. If needed, more
            than ``keep`` is kept. None sets no limit.
        floor: the smallest probability of being kept, so that no weight exceeds ``1 / floor``.
        window: how many of the latest scores ``c`` is computed from.
        seed: the key of the draws; the global random generators are never touched.
        rank: the rank whose draws these are; by default that of torch.distributed, if initialised.
        forward_cost: what scoring one sample costs, as a share of a training step: less than a third
            if a smaller model does it.

    Raises:
        ValueError: if an argument is out of its range, or ``floor`` is not below ``keep``.

    In a loop, score the batch without gradients, then train on what is kept:
    ``kept = pruner.select(losses)``, ``kept.mean(criterion(model(x[kept.index]), y[kept.index])).backward()``.

    >>> pruner = StreamPruner(keep=0.5)
    >>> kept = pruner.select(torch.tensor([0.1, 2.0, 0.1, 2.0]))
    >>> kept.index, kept.weights
    (tensor([1, 3]), tensor([1.1024, 1.1024]))
    >>> kept.mean(torch.tensor([2.0, 2.0]))  # of 4 samples
    tensor(1.1024)
    """

    def __init__(
        self,
        keep: float = 0.5,
        *,
        seed: int = 0,
        max_noise: float | None = None,
        floor: float = 0.05,
        window: int = 2048,
        rank: int | None = None,
        forward_cost: float = FORWARD,
    ) -> None:
        self.floor = _share("floor", floor, "the smallest probability of being kept", least=0)
        self.keep = _share("keep", keep, "the share of the samples to train on", least=0)
        if keep <= floor:
            raise ValueError(
                f"StreamPruner(keep={keep}, floor={floor}): expected a floor below keep: every "
                "sample is kept with at least that probability."
            )
        if max_noise is not None and not (isinstance(max_noise, int | float) and max_noise > 0):
            raise ValueError(
                f"StreamPruner(max_noise=…) got {max_noise!r}, expected a number above 0, such as 0.1 "
                "for a tenth more gradient noise, or None."
            )
        if not (isinstance(forward_cost, int | float) and 0 <= forward_cost < math.inf):
            raise ValueError(
                f"StreamPruner(forward_cost=…) got {forward_cost!r}, expected what scoring a sample "
                "costs as a share of a training step, such as 1/3."
            )
        why = "the last scores that the probabilities are computed from"
        self.window = check_count("StreamPruner(): window", window, why)
        self.seed = check_count("StreamPruner(): seed", seed, "it seeds the random draws", least=0)
        if rank is not None:
            rank = check_count("StreamPruner(): rank", rank, "ranks are counted from 0", least=0)
        self._rank = rank
        self.max_noise = max_noise
        self.forward_cost = float(forward_cost)
        self._batches = self._scored = self._trained = 0
        # Kept on the scores' device: only ``index`` waits for the device.
        self._recent = torch.empty(0)
        self._owed = torch.zeros(())  # samples that the budget has left; below 0, it is overdrawn
        self._unscored = torch.zeros((), dtype=torch.int64)

    def select(self, scores: torch.Tensor) -> Kept:
        """Choose what to train on from a batch.

        Waits for the device once, because only the device knows how many samples are kept.

        Args:
            scores: (B,), one number per sample, usually its loss; no gradient is needed.

        Returns:
            The kept samples and their weights; at least one.

        Raises:
            ValueError: if the scores are not a 1-D tensor with at least one entry.
        """
        if not isinstance(scores, torch.Tensor) or scores.dim() != 1 or not len(scores):
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise ValueError(
                f"StreamPruner.select() got {got}, expected one score per sample: a 1-D tensor. Build "
                'the criterion with reduction="none" and pass what it returns.'
            )
        # float64 makes the sums below exact enough; devices without it make do with float32.
        exact = torch.float32 if scores.device.type == "mps" else torch.float64
        scores = scores.detach().to(exact)
        usable = scores.isfinite() & (scores >= 0)
        probabilities = self._probabilities(scores.where(usable, torch.nan), usable)
        rng = np.random.Generator(np.random.SFC64((self.seed, self._own_rank(), self._batches)))
        order = torch.from_numpy(rng.permutation(len(scores))).to(scores.device)
        index = systematic(probabilities, order, rng.random()).nonzero().squeeze(1)
        self._batches += 1
        self._scored += len(scores)
        self._trained += len(index)
        self._unscored = self._unscored.to(scores.device) + (~usable).sum()
        return Kept(index, 1 / probabilities[index].float(), len(scores))

    def _probabilities(self, scores: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
        """The probability of keeping each sample; scores that are not usable are NaN."""
        recent = torch.cat([self._recent.to(scores), scores])
        self._recent = recent[-self.window :]
        # In units of the largest score; a score of 0 becomes tiny, to avoid dividing by 0.
        unit = recent.nan_to_num(0.0).max().clamp(min=_SMALLEST)
        known = (recent / unit).clamp(min=_SMALLEST).nan_to_num(0.0).sort().values
        scores = (scores / unit).clamp(min=_SMALLEST)
        # Any surplus or deficit is made up for over the next window.
        owed = self._owed.to(scores)
        share = (self.keep + owed / self.window - self.floor) / (1 - self.floor)
        slope = slope_for_budget(known, share.clamp(*_SHARES) * (known > 0).sum())
        chances = self._chances(slope * scores, usable)
        owed = owed + (self.keep - chances).where(usable, 0.0).sum()
        self._owed = owed.clamp(-self.window, self.window)
        if self.max_noise is None:
            return chances
        # What the noise limit keeps beyond the budget is not charged to it.
        slope = torch.maximum(slope, slope_for_noise(known, self.max_noise))
        return self._chances(slope * scores, usable)

    def _chances(self, importance: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
        chances = self.floor + (1 - self.floor) * importance.clamp(max=1.0)
        chances = chances.where(usable, 1.0)
        # They sum to at least 1, so that at least one sample is drawn.
        return (chances * ((1 + _ROUNDING) / chances.sum()).clamp(min=1.0)).clamp(max=1.0)

    def _own_rank(self) -> int:
        if self._rank is None:
            self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return self._rank

    @property
    def savings(self) -> StreamSavings:
        """The passes so far, including the forward passes for scoring."""
        return StreamSavings(self._scored, self._trained, int(self._unscored), self.forward_cost)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here, bit for bit; one per rank."""
        return {
            "version": _VERSION,
            "settings": self._settings(),
            "batches": self._batches,
            "scored": self._scored,
            "trained": self._trained,
            "unscored": int(self._unscored),
            "recent": self._recent.cpu(),
            "owed": self._owed.cpu(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a pruner with the same settings.

        Args:
            state: what :meth:`state_dict` returned on this rank.

        Raises:
            ValueError: if the state is of another version, or of a pruner with other settings.
        """
        if state.get("version") != _VERSION:
            raise ValueError(
                f"StreamPruner.load_state_dict() got a state of version {state.get('version')!r}, "
                f"expected {_VERSION}: a state_dict() of a StreamPruner."
            )
        if state["settings"] != self._settings():
            raise ValueError(
                f"StreamPruner.load_state_dict() got the state of a pruner with {state['settings']}, "
                f"expected {self._settings()}. Build the pruner with the settings of the run that it "
                "continues."
            )
        self._batches = state["batches"]
        self._scored, self._trained = state["scored"], state["trained"]
        self._unscored = torch.tensor(state["unscored"])
        self._recent, self._owed = state["recent"].clone(), state["owed"].clone()

    def _settings(self) -> dict[str, Any]:
        names = ("keep", "seed", "max_noise", "floor", "window")
        return {name: getattr(self, name) for name in names} | {"rank": self._own_rank()}


def _share(name: str, value: Any, what: str, *, least: float) -> float:
    """Return a share below 1 as a float; raise for anything else."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not number or not least <= value < 1:
        raise ValueError(
            f"StreamPruner({name}=…) got {value!r}, expected {what}, a number from {least} to below 1."
        )
    return float(value)
