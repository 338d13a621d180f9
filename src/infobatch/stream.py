"""Pruning within the batch, for data that is seen once: score all of it, train on a part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from infobatch.checks import check_count, check_losses
from infobatch.plan.importance import priority, slope_for_budget, slope_for_noise, systematic
from infobatch.savings import FORWARD, StreamSavings
from infobatch.transfer import send

_Array = npt.NDArray[np.float64]

_VERSION = 1
_KEEP = 0.5
_SMALLEST = 1e-20  # replaces a score of 0, relative to the largest: probabilities stay above 0
_SHARES = (1e-3, 1 - 1e-3)  # bounds: a share that is owed may exceed what can be kept
_ROUNDING = 1e-9
_TINY, _HUGE = 1e-30, 1e30  # sizes of samples with a score of 0, and without a usable one
_EXACT = 1 << 24  # float32 has all integers up to here


@dataclass(frozen=True)
class Kept:
    """The samples of a batch that :meth:`StreamPruner.select` keeps.

    Attributes:
        index: the positions of the kept samples in the batch; in ascending order, unless their
            number is fixed.
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
        # Unlike a matrix product, this stays in float32 under autocast.
        return torch.dot(losses.float(), self.weights).to(losses.dtype) / self.batch_size


class StreamPruner:
    """Chooses what to train on from each batch, by scores from a forward pass.

    A sample is kept with probability ``p = floor + (1 - floor) * min(1, c * score)`` and has the
    weight ``1 / p``, so that the expected gradient is that of the whole batch. ``c`` follows the
    scores of the last ``window`` samples such that a share ``keep`` is kept in the long run: a
    batch of hard samples keeps more and an easy one fewer, but each at least one sample.

    Samples whose score is NaN, infinite or negative are kept with weight 1, because nothing is
    known about them, and counted in ``savings.unscored``.

    With ``count``, exactly that many samples are kept of every batch: all shapes are the same, which
    compiled models and CUDA graphs need, and nothing waits for the device. A batch of at most that
    many samples is kept whole. The draw is :func:`priority sampling
    <infobatch.plan.importance.priority>`: also unbiased, with probabilities in proportion to
    ``floor`` plus the score, and weights of at most about ``1 / floor``.

    Args:
        keep: the share of the samples to train on; by default a half. Scoring costs a third of a step
            per sample, so only shares below two thirds save anything.
        count: the number of samples to train on of each batch, in place of a share; at least 2.
        max_noise: by how much pruning may raise the gradient noise, ``Σ score²/p ÷ Σ score² − 1`` over
            the window, with the score standing for the size of a sample's gradient. If needed, more
            than ``keep`` is kept. None sets no limit.
        floor: the smallest probability of being kept, so that no weight exceeds ``1 / floor``.
        window: how many of the latest scores ``c`` is computed from.
        seed: the key of the draws; the global random generators are never touched.
        rank: the rank whose draws these are; by default that of torch.distributed, if initialised.
            Ranks with different batches need different ranks here; ranks that share a batch (tensor,
            pipeline or context parallelism) have to make the same draw, and so need the same rank,
            that of their data parallel group, and the same scores to the last bit.
        process_group: the group in which the default rank is looked up; with model parallelism, the
            data parallel one.
        forward_cost: what scoring one sample costs, as a share of a training step: less than a third
            if a smaller model does it.

    Raises:
        ValueError: if an argument is out of its range, ``floor`` is not below ``keep``, or ``count``
            is combined with ``keep`` or ``max_noise``.

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
        keep: float | None = None,
        *,
        count: int | None = None,
        seed: int = 0,
        max_noise: float | None = None,
        floor: float = 0.05,
        window: int = 2048,
        rank: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        forward_cost: float = FORWARD,
    ) -> None:
        self.floor = _share("floor", floor, "the smallest probability of being kept", least=0)
        self.count = _check_fixed(count, keep, max_noise)
        keep = _KEEP if keep is None else keep
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
        self._rank, self._process_group = rank, process_group
        self.max_noise = max_noise
        self.forward_cost = float(forward_cost)
        self._batches = self._scored = self._trained = 0
        self._unscored: int | torch.Tensor = 0  # with ``count``, counted on the device
        self._recent: _Array = np.empty(0)
        self._owed = 0.0  # samples that the budget has left; below 0, it is overdrawn

    @torch.inference_mode(False)  # the weights are for a step with gradients
    def select(self, scores: torch.Tensor) -> Kept:
        """Choose what to train on from a batch.

        The draw is made on the host, because how many samples are kept depends on the scores: it
        waits once for the device to copy them there. With ``count`` it is made on the device, and
        nothing waits.

        Args:
            scores: (B,), one number per sample, usually its loss; no gradient is needed.

        Returns:
            The kept samples and their weights; at least one.

        Raises:
            ValueError: if the scores are not a 1-D tensor with at least one entry, or ``count`` is
                too small for the ``floor``.
        """
        if not isinstance(scores, torch.Tensor) or scores.dim() != 1 or not len(scores):
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise ValueError(
                f"StreamPruner.select() got {got}, expected one score per sample: a 1-D tensor. Build "
                'the criterion with reduction="none" and pass what it returns.'
            )
        rng = np.random.Generator(np.random.SFC64((self.seed, self._own_rank(), self._batches)))
        scores = scores.detach()
        kept = self._draw(scores, rng) if self.count is None else self._draw_count(scores, rng)
        self._batches += 1
        self._scored += len(scores)
        self._trained += len(kept)
        return kept

    def _draw(self, scores: torch.Tensor, rng: np.random.Generator) -> Kept:
        """Draw on the host, in float64 whatever the device has."""
        size = len(scores)
        if size > _EXACT:
            raise ValueError(
                f"StreamPruner.select() got {size:,} scores, expected at most {_EXACT:,}: the samples "
                "of one batch."
            )
        probabilities = self._probabilities(scores.cpu().double().numpy())
        drawn = systematic(probabilities, rng.permutation(size), rng.random())
        index = drawn.nonzero()[0]
        # In one copy, in which float32 holds the index exactly.
        rows = np.stack([index, 1 / probabilities[index]]).astype(np.float32)
        sent = send(torch.from_numpy(rows), scores.device)
        return Kept(sent[0].long(), sent[1], size)

    def _draw_count(self, scores: torch.Tensor, rng: np.random.Generator) -> Kept:
        """Draw on the device, with shapes that do not depend on the scores."""
        size, count = len(scores), self.count
        assert count is not None
        if count <= self.floor * size:
            raise ValueError(
                f"StreamPruner(count={count}, floor={self.floor}).select() got {size} scores, of which "
                f"the floor alone keeps {self.floor * size:.1f}. Expected a count above that: raise "
                "it, or lower the floor."
            )
        scores = scores.float()
        unusable = (scores.sqrt() < torch.inf).logical_not()  # NaN, infinite or negative
        self._unscored = unusable.sum() + self._unscored
        if size <= count:
            index = torch.arange(size, device=scores.device)
            return Kept(index, torch.ones(size, device=scores.device), size)
        known = scores.masked_fill(unusable, 0.0)
        # So many mean scores, added to every score, make the least probability about the floor.
        smallest = self.floor * size / (count - self.floor * size)
        sizes = torch.add(known, known.mean(), alpha=smallest) + _TINY
        uniform = send(torch.from_numpy(1 - rng.random(size, np.float32)), scores.device)
        return Kept(*priority(sizes.masked_fill(unusable, _HUGE), uniform, count), size)

    def _probabilities(self, scores: _Array) -> _Array:
        """The probability of keeping each sample."""
        usable = np.isfinite(scores) & (scores >= 0)
        self._unscored += len(scores) - int(usable.sum())
        recent = np.concatenate([self._recent, np.where(usable, scores, np.nan)])
        self._recent = recent[-self.window :]
        recent = recent[~np.isnan(recent)]
        if not len(recent):
            return np.ones(len(scores))
        # In units of the largest score; a score of 0 becomes tiny, to avoid dividing by 0.
        unit = max(recent.max(), _SMALLEST)
        known = np.sort((recent / unit).clip(min=_SMALLEST))
        scores = (np.where(usable, scores, 0.0) / unit).clip(min=_SMALLEST)
        # Any surplus or deficit is made up for over the next window.
        share = (self.keep + self._owed / self.window - self.floor) / (1 - self.floor)
        slope = slope_for_budget(known, min(max(share, _SHARES[0]), _SHARES[1]) * len(known))
        chances = self._chances(slope * scores, usable)
        owed = self._owed + float((self.keep - chances[usable]).sum())
        self._owed = min(max(owed, -self.window), self.window)
        if self.max_noise is None:
            return chances
        # What the noise limit keeps beyond the budget is not charged to it.
        slope = max(slope, slope_for_noise(known, self.max_noise))
        return self._chances(slope * scores, usable)

    def _chances(self, importance: _Array, usable: npt.NDArray[np.bool_]) -> _Array:
        chances = self.floor + (1 - self.floor) * importance.clip(max=1.0)
        chances = np.where(usable, chances, 1.0)
        # They sum to at least 1, so that at least one sample is drawn.
        raised: _Array = (chances * max((1 + _ROUNDING) / chances.sum(), 1.0)).clip(max=1.0)
        return raised

    def _own_rank(self) -> int:
        if self._rank is None:
            distributed = dist.is_available() and dist.is_initialized()
            self._rank = dist.get_rank(self._process_group) if distributed else 0
        return self._rank

    @property
    def savings(self) -> StreamSavings:
        """The passes so far, including the forward passes for scoring.

        With ``count``, reading it waits for the device.
        """
        return StreamSavings(self._scored, self._trained, self._count_unscored(), self.forward_cost)

    def _count_unscored(self) -> int:
        counted = self._unscored
        return counted if isinstance(counted, int) else int(counted.cpu())

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue from here, bit for bit.

        Returns:
            The state of this rank, in plain tensors and numbers; save one per rank.
        """
        return {
            "version": _VERSION,
            "settings": self._settings(),
            "batches": self._batches,
            "scored": self._scored,
            "trained": self._trained,
            "unscored": self._count_unscored(),
            "recent": torch.from_numpy(self._recent.copy()),
            "owed": self._owed,
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
        self._unscored = state["unscored"]
        self._recent, self._owed = state["recent"].numpy().copy(), state["owed"]

    def _settings(self) -> dict[str, Any]:
        names = ("keep", "count", "seed", "max_noise", "floor", "window")
        return {name: getattr(self, name) for name in names} | {"rank": self._own_rank()}


def _share(name: str, value: Any, expected: str, *, least: float) -> float:
    """Return a share below 1 as a float; raise for anything else."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not number or not least <= value < 1:
        raise ValueError(
            f"StreamPruner({name}=…) got {value!r}, expected {expected}, a number from {least} to below 1."
        )
    return float(value)


def _check_fixed(count: Any, keep: Any, max_noise: Any) -> int | None:
    """Return the number of samples to keep of every batch, or None; raise if more is asked for."""
    if count is None:
        return None
    if keep is not None or max_noise is not None:
        raise ValueError(
            f"StreamPruner(count={count}) got keep={keep} and max_noise={max_noise} as well, expected "
            "one way to say how many samples are kept: a fixed number, or a share that follows the scores."
        )
    why = "it is how many samples of each batch are trained on, and the weight of a single one varies without bounds"
    return check_count("StreamPruner(): count", count, why, least=2)
