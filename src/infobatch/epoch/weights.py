"""The weight of a sample in the mean that ``update`` returns to a training loop.

Weights are returned divided by the number of samples, so that the weighted mean is one dot product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from infobatch.epoch.route import Route
from infobatch.plan.batching import Batches, ShrunkBatches

_AT_ONCE = 1 << 16  # positions whose weights are unpacked together
_ALIGNED = 16  # weights between addresses that are aligned like a new tensor's


class _Chunk(NamedTuple):
    """The weights of the positions from start to stop; scaled ones are weights / batch."""

    start: int
    stop: int
    batch: int
    losses_dtype: torch.dtype
    weights: torch.Tensor
    scaled: torch.Tensor


class _Table(NamedTuple):
    """Each sample's weight class, and the weights of the classes for some batch size."""

    batch: int
    losses_dtype: torch.dtype
    classes: torch.Tensor
    scaled: torch.Tensor


class Weights:
    """The weights along a route, on the device where the losses are.

    If batches shrink with the epoch, the mean over a smaller batch is multiplied by the ratio of
    the sizes, so that in effect it is divided by the full batch's size.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._whole = route.plan.whole
        self._shrunk: ShrunkBatches | None = None
        self._chunk: _Chunk | None = None
        self._table: _Table | None = None

    def cut_into(self, batches: Batches | None) -> None:
        """Set the batches into which the route is divided."""
        self._shrunk = self._chunk = self._table = None
        route = self._route
        # A rank with a shard of the scores may leave nothing out while other ranks do.
        pruned = not self._whole or route.planned < route.full_counts.sum()
        if isinstance(batches, ShrunkBatches) and pruned:
            batches.compare(route.counts, route.full_counts)
            self._shrunk, self._whole = batches, False

    def scaled(self, start: int, count: int, like: torch.Tensor) -> torch.Tensor | None:
        """Weight / count for some positions, on the losses' device; None if all weights are 1."""
        stop = start + count
        in_tail = stop > self._route.all_real
        if self._whole and not in_tail:
            return None
        chunk = self._chunk
        if (
            chunk is None
            or start < chunk.start
            or stop > chunk.stop
            or like.dtype is not chunk.losses_dtype
            or like.device != chunk.weights.device
        ):
            chunk = self._chunk = self._unpack(start, stop, like)
        if count == chunk.batch and not in_tail:
            scaled = chunk.scaled[start - chunk.start : stop - chunk.start]
            # The exact bits of a dot product depend on the alignment of its operands, and a resumed
            # epoch unpacks its weights from another position.
            return scaled.clone() if (start - chunk.start) % _ALIGNED else scaled
        # Ranks average their means, repeats included; the global batch has only the real samples.
        real = int((self._route.counts - start).clip(0, count).sum())
        weights = chunk.weights[start - chunk.start : stop - chunk.start]
        # A division, as in the chunk, to get the same bits whichever batch the chunk was made for.
        return weights / (real / len(self._route.counts))

    def scaled_at(self, index: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The same for the samples ``index``; NaN for those that this epoch's plan leaves out."""
        table = self._table
        if (
            table is None
            or table.batch != index.shape[0]
            or table.losses_dtype is not like.dtype
            or table.classes.device != like.device
        ):
            table = self._table = self._tabulate(index.shape[0], like)
        if self._shrunk is not None:  # every sample has its own weight
            return table.scaled.index_select(0, index)
        return table.scaled.index_select(0, table.classes.index_select(0, index).int())

    @torch.inference_mode(False)
    def _unpack(self, start: int, stop: int, like: torch.Tensor) -> _Chunk:
        count = stop - start
        stop = min(max(stop, start + _AT_ONCE), len(self._route))
        plan = self._route.plan
        codes = self._route.codes(start, stop)
        classes = codes >> codes.dtype.type(plan.row_bits)
        signed = classes.view(np.int32 if classes.dtype == np.uint32 else np.int64)
        dtype = torch.promote_types(like.dtype, torch.float32)
        by_class = torch.from_numpy(plan.class_weights).to(dtype)
        weights = by_class.index_select(0, torch.from_numpy(signed))
        if self._shrunk is not None:
            factors = self._shrunk.factors(np.arange(start, stop))
            weights *= torch.from_numpy(factors).to(dtype)
        weights[max(len(self._route.shard) - start, 0) :] = 0.0  # repeats
        weights = weights.to(like.device, non_blocking=True)
        return _Chunk(start, stop, count, like.dtype, weights, weights / count)

    @torch.inference_mode(False)
    def _tabulate(self, batch: int, like: torch.Tensor) -> _Table:
        plan = self._route.plan
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self._shrunk is not None:
            left = self._route.left
            factors = self._shrunk.factors(np.arange(len(left)) // len(self._route.counts))
            by_row = np.full(plan.num_samples, np.nan)
            by_row[plan.rows(plan.codes)] = plan.class_weights[plan.classes(plan.codes)]
            by_row[plan.rows(left)] *= factors  # a repeat of what a checkpoint visited has none
            scaled = torch.from_numpy(by_row).to(like.device, dtype) / batch
            return _Table(batch, like.dtype, scaled, scaled)
        if self._table is not None and self._table.classes.device == like.device:
            classes = self._table.classes
        else:
            class_of = np.full(plan.num_samples, len(plan.class_weights), np.uint8)
            class_of[plan.rows(plan.codes)] = plan.classes(plan.codes)
            classes = torch.from_numpy(class_of).to(like.device)
        scaled = torch.from_numpy(np.append(plan.class_weights, np.nan)) / batch
        return _Table(batch, like.dtype, classes, scaled.to(like.device, dtype))


def weighted_mean_at(
    call: str, weights: Weights, index: torch.Tensor, losses: torch.Tensor, num_samples: int
) -> tuple[torch.Tensor, bool]:
    """The weighted mean by sample, and whether all losses are known to be finite.

    On a CPU, where the check costs nothing, raise at samples that the plan leaves out.
    """
    try:
        scaled = weights.scaled_at(index, losses)
    except (IndexError, RuntimeError) as error:
        if int(index.min()) >= 0 and int(index.max()) < num_samples:
            raise  # something else is wrong
        raise IndexError(
            f"{call}(index=…) got indices from {int(index.min())} to {int(index.max())}, expected "
            f"0 to {num_samples - 1}. Pass the index that the batch of Indexed carries."
        ) from error
    loss = weighted_mean(losses, scaled)
    if losses.device.type != "cpu":
        return loss, False
    mean = loss.item()
    if math.isnan(mean):
        foreign = index[scaled.isnan()].tolist()
        if foreign:
            raise IndexError(
                f"{call}(index=…) got samples that this epoch's plan leaves out: {foreign[:5]}"
                f"{' …' if len(foreign) > 5 else ''}. Expected batches of this epoch, from a loader "
                "with this pruner's sampler; a batch that was fetched before set_epoch() belongs to "
                "the previous epoch."
            )
    return loss, math.isfinite(mean)


def weighted_mean(losses: torch.Tensor, scaled: torch.Tensor | None) -> torch.Tensor:
    """The mean of weight × loss, where ``scaled`` is weight / count; None stands for weights of 1."""
    if scaled is None:
        return losses.mean()
    if losses.dtype is scaled.dtype:
        return torch.dot(losses, scaled)
    return torch.dot(losses.to(scaled.dtype), scaled).to(losses.dtype)
