"""The weights of an epoch's samples, on the device where the losses are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from infobatch.per_sample import PerSample
from infobatch.plan.batching import Batches, ShrunkBatches
from infobatch.step.route import Route

_AT_ONCE = 1 << 16  # positions whose weights are unpacked together
_ALIGNED = 16  # weights between addresses that are aligned like a new tensor's


class _Chunk(NamedTuple):
    """The weights of the positions from start to stop.

    ``scaled`` has one tensor per ``batch`` positions, weights / batch. ``source`` is what ``weights``
    are copied from: on some devices (MPS) the copy may still be reading it when ``to`` has
    returned, so it must not be freed before.
    """

    start: int
    stop: int
    batch: int
    losses_dtype: torch.dtype
    device: torch.device
    weights: torch.Tensor
    scaled: tuple[torch.Tensor, ...]
    source: torch.Tensor


class _Table(NamedTuple):
    """The weights by row; NaN for those that the plan leaves out.

    ``by_row`` has each row's number in ``by_class``, or, where every batch has its own factor, the
    weights themselves. ``scaled`` are the classes' weights / batch.
    """

    losses_dtype: torch.dtype
    by_row: torch.Tensor
    by_class: torch.Tensor | None
    batch: int
    scaled: torch.Tensor | None
    sources: tuple[torch.Tensor, ...]  # as in a chunk


class Weights:
    """The weights along a route, which is divided into ``batches`` if these are known.

    If batches shrink with the epoch, the mean over a smaller batch is multiplied by the ratio of
    the sizes, so that in effect it is divided by the full batch's size.
    """

    def __init__(self, route: Route, batches: Batches | None) -> None:
        self._route = route
        self.whole = route.plan.whole  # but for repeats, all weights are 1
        self._shrunk: ShrunkBatches | None = None
        self._chunk: _Chunk | None = None
        self._table: _Table | None = None
        # A rank with a shard of the scores may leave nothing out while other ranks do.
        pruned = not self.whole or route.planned < route.full_counts.sum()
        if isinstance(batches, ShrunkBatches) and pruned:
            batches.compare(route.counts, route.full_counts)
            self._shrunk, self.whole = batches, False

    def scaled(self, start: int, count: int, like: torch.Tensor) -> torch.Tensor | None:
        """Weight / count for some positions, so that the weighted mean is one dot product.

        None if all weights are 1. On the device of the losses ``like``, in at least their precision.
        """
        stop = start + count
        in_tail = stop > self._route.all_real
        if self.whole and not in_tail:
            return None
        chunk = self._chunk_with(start, stop, like.dtype, like.device)
        offset = start - chunk.start
        if count == chunk.batch and not in_tail and not offset % count:
            scaled = chunk.scaled[offset // count]
            # The exact bits of a dot product depend on the alignment of its operands, and a resumed
            # epoch unpacks its weights from another position.
            return scaled.clone() if offset % _ALIGNED else scaled
        weights = chunk.weights[offset : offset + count]
        # A division, as in the chunk, to get the same bits whichever batch the chunk was made for.
        return weights / self._divisor(start, count)

    def unscaled(self, start: int, count: int, device: torch.device) -> torch.Tensor:
        """The weights of some positions, float32: their product with the losses has the right mean."""
        stop = start + count
        in_tail = stop > self._route.all_real
        if self.whole and not in_tail:
            return torch.ones(count, device=device)
        chunk = self._chunk_with(start, stop, torch.float32, device)
        weights = chunk.weights[start - chunk.start : stop - chunk.start]
        return weights * (count / self._divisor(start, count)) if in_tail else weights

    def scaled_at(self, call: str, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Weight / count for the samples ``index``; NaN where the plan leaves one out.

        On the device of ``index``, for losses of this dtype. Raises at an index that no sample has,
        where that can be seen.
        """
        table = self._table_for(index.shape[0], dtype, index.device)
        try:
            by_row = table.by_row.index_select(0, index)
        except (IndexError, RuntimeError) as error:
            num_samples = len(table.by_row)
            if int(index.min()) >= 0 and int(index.max()) < num_samples:
                raise  # something else is wrong
            raise IndexError(
                f"{call}(index=…) got indices from {int(index.min())} to {int(index.max())}, expected "
                f"0 to {num_samples - 1}. Pass the index that the batch of Indexed carries."
            ) from error
        if table.scaled is None:
            return by_row / table.batch
        return table.scaled.index_select(0, by_row)

    def _table_for(self, batch: int, dtype: torch.dtype, device: torch.device) -> _Table:
        table = self._table
        if table is None or table.losses_dtype is not dtype or table.by_row.device != device:
            table = self._table = self._tabulate(batch, dtype, device)
        if table.batch != batch:
            scaled = None if table.by_class is None else table.by_class / batch
            table = self._table = table._replace(batch=batch, scaled=scaled)
        return table

    def _divisor(self, start: int, count: int) -> float:
        """What the sum over a batch is divided by.

        Ranks average their means, repeats included; the global batch has only the real samples.
        """
        real = int((self._route.counts - start).clip(0, count).sum())
        return real / len(self._route.counts)

    def _chunk_with(
        self, start: int, stop: int, dtype: torch.dtype, device: torch.device
    ) -> _Chunk:
        chunk = self._chunk
        if (
            chunk is None
            or start < chunk.start
            or stop > chunk.stop
            or dtype is not chunk.losses_dtype
            or device != chunk.device
        ):
            chunk = self._chunk = self._unpack(start, stop, dtype, device)
        return chunk

    @torch.inference_mode(False)
    def _unpack(self, start: int, stop: int, dtype: torch.dtype, device: torch.device) -> _Chunk:
        count = stop - start
        if device.type != "xla":  # which would compile a program for each slice of a chunk
            stop = min(max(stop, start + _AT_ONCE), len(self._route))
        plan = self._route.plan
        codes = self._route.codes(start, stop)
        classes = codes >> codes.dtype.type(plan.row_bits)
        signed = classes.view(np.int32 if classes.dtype == np.uint32 else np.int64)
        by_class = torch.from_numpy(plan.class_weights).to(
            torch.promote_types(dtype, torch.float32)
        )
        source = by_class.index_select(0, torch.from_numpy(signed))
        if self._shrunk is not None:
            factors = self._shrunk.factors(np.arange(start, stop))
            source *= torch.from_numpy(factors).to(source.dtype)
        source[max(len(self._route.shard) - start, 0) :] = 0.0  # repeats
        weights = source.to(device, non_blocking=True)
        scaled = torch.split(weights / count, count)
        return _Chunk(start, stop, count, dtype, weights.device, weights, scaled, source)

    @torch.inference_mode(False)
    def _tabulate(self, batch: int, dtype: torch.dtype, device: torch.device) -> _Table:
        plan, left = self._route.plan, self._route.left
        classes = np.append(plan.class_weights, np.nan)
        by_class = torch.from_numpy(classes).to(torch.promote_types(dtype, torch.float32))
        class_of = np.full(plan.num_samples, len(plan.class_weights), np.int32)
        class_of[plan.rows(plan.codes)] = plan.classes(plan.codes)
        if self._shrunk is None:
            sources = (torch.from_numpy(class_of), by_class)
            by_row, weights = (source.to(device, non_blocking=True) for source in sources)
            return _Table(dtype, by_row, weights, batch, weights / batch, sources)
        by_row = by_class[torch.from_numpy(class_of)]
        positions = np.arange(len(left)) // len(self._route.counts)
        # A repeat of what a checkpoint visited has no factor.
        by_row.numpy()[plan.rows(left)] *= self._shrunk.factors(positions)
        return _Table(
            dtype, by_row.to(device, non_blocking=True), None, batch, None, sources=(by_row,)
        )


def check_planned(call: str, weights: torch.Tensor, index: torch.Tensor) -> None:
    """Raise at samples that this epoch's plan leaves out; waits for the device."""
    left_out = index[weights.isnan()].tolist()
    if left_out:
        raise IndexError(
            f"{call}(index=…) got samples that this epoch's plan leaves out: {left_out[:5]}"
            f"{' …' if len(left_out) > 5 else ''}. Expected batches of this epoch, from a loader "
            "with this pruner's sampler; a batch that was fetched before set_epoch() belongs to "
            "the previous epoch."
        )


def weighted_mean(
    losses: torch.Tensor, scaled: torch.Tensor | None, samples: PerSample | None = None
) -> torch.Tensor:
    """The mean of weight × loss, where ``scaled`` is weight / count; None stands for weights of 1.

    If the losses are those of ``samples``, they are divided by a weighted number, too.
    """
    if scaled is None:
        return losses.mean()
    if samples is not None:
        losses = samples.rescaled(scaled)
    if losses.dtype is scaled.dtype:
        return torch.dot(losses, scaled)
    return torch.dot(losses.to(scaled.dtype), scaled).to(losses.dtype)
