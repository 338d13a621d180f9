"""One epoch under way on one rank: where it stands, the losses it has brought, the weights it gives.

The losses of an epoch lie in a buffer on the device that computed them, position by position (or by
sample index, where the batch carries it), and reach the scores only when the epoch is over. So a
step copies a few numbers on the device and needs no synchronisation, no scatter and no communication.
In a buffer, minus infinity means "not visited" and plus infinity "visited, no score".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed import Ranks
from infobatch.plan import FloatArray, Plan, fingerprint

_UNVISITED = float("-inf")
_UNSCORED = float("inf")
_WEIGHTS_AT_ONCE = 1 << 16  # positions whose weights are unpacked together
_FOLD_BLOCK = 1 << 16


class Progress(NamedTuple):
    """How far an epoch has come: ``done`` of ``total`` samples, over all ranks.

    ``total`` leaves out an incomplete last batch that the loader drops.
    """

    epoch: int
    done: int
    total: int


@torch.inference_mode(False)  # a buffer must outlive the mode it happens to be made in
def _unvisited(count: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":  # numpy asks for huge pages, which random access is faster in
        return torch.from_numpy(np.full(count, _UNVISITED, np.float32))
    return torch.full((count,), _UNVISITED, dtype=torch.float32, device=device)


class _Chunk(NamedTuple):
    """The weights of the positions from start to stop; shares are weights / batch."""

    start: int
    stop: int
    batch: int
    losses_dtype: torch.dtype
    weights: torch.Tensor
    shares: torch.Tensor


class _Table(NamedTuple):
    """Each sample's weight class, and what a class weighs in the mean of a batch of some size."""

    batch: int
    losses_dtype: torch.dtype
    codes: torch.Tensor
    shares: torch.Tensor


class Ledger:
    """The running epoch's plan, seen from one rank, and what was recorded of it.

    ``earlier`` holds the losses that a loaded checkpoint brings for the plan's first positions;
    ``by_index`` those of a checkpoint whose batches carried their indices. The walk then goes over
    what they leave.
    """

    def __init__(
        self,
        plan: Plan,
        ranks: Ranks,
        *,
        earlier: FloatArray | None = None,
        by_index: torch.Tensor | None = None,
    ) -> None:
        self.plan = plan
        self.ranks = ranks
        self.taken = 0  # positions of this rank that were updated or skipped
        self.largest_batch = 0  # most samples of an update
        self.lookahead: int | None = None  # most indices that may be out without an update
        self._earlier = np.empty(0, np.float32) if earlier is None else earlier
        self._by_index = by_index
        self._by_position: torch.Tensor | None = None
        # Whether the losses by index are those of all ranks.
        self._merged = by_index is not None or ranks.world_size == 1
        self._everyones: torch.Tensor | None = None  # all ranks' losses, after an exchange
        self._table: _Table | None = None
        self._chunk: _Chunk | None = None
        self._whole = plan.whole
        self._last: tuple[int, int] | None = None
        self._words = plan.words[len(self._earlier) :]
        if by_index is not None:
            visited = by_index.numpy()[plan.places(plan.words)] != _UNVISITED
            self._words = plan.words[~visited]
        if ranks.sharded:
            self._own = self._words
            counts = ranks.gather(torch.tensor([len(self._own), len(self._earlier)])).cpu().numpy()
            self._shares, self._before = counts[:, 0], int(counts[:, 1].sum())
        else:
            self._own = self._words[ranks.rank % ranks.walkers :: ranks.walkers]
            whole, more = divmod(len(self._words), ranks.walkers)
            self._shares = whole + (np.arange(ranks.walkers) < more)
            self._before = len(plan) - len(self._words)
        self._length = int(self._shares.max())
        self._even = int(self._shares.min())  # positions that are real on every rank

    # The route that a sampler walks.

    def __len__(self) -> int:
        """Positions of this rank's walk: equally many on each, the last ones perhaps repeats."""
        return self._length

    def indices(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The samples at some positions of this rank's walk."""
        return self.plan.indices(self._own_words(start, stop))

    def _own_words(self, start: int, stop: int) -> npt.NDArray[Any]:
        words = self._own[start:stop]
        missing = stop - start - len(words)
        if missing:  # this rank's share is smaller than another's: fill up with repeats
            words = np.append(
                words, np.resize(self._own if len(self._own) else self._words, missing)
            )
        return words

    # What the training loop reports.

    def claim(self, call: str, count: int, handed_out: int) -> int:
        """Take the next ``count`` positions and return the first, or refuse if counts do not agree."""
        if self._by_index is not None:
            raise RuntimeError(
                f"{call} without index= follows an update with index= in the same epoch. Expected "
                "one form throughout: pass index= to every update."
            )
        outstanding = handed_out - self.taken
        if count > outstanding:
            raise RuntimeError(
                f"{call} got {count} samples, but only {outstanding} that the sampler handed out are "
                "waiting for an update. Expected one update for each batch, of the loader that was "
                "built with this sampler. For a second forward of the same batch use reweight()."
            )
        expected = outstanding if self.lookahead is None else self.lookahead
        if outstanding > expected and call != "skip()":  # skip() is how a user puts it right
            raise RuntimeError(
                f"{call} finds {outstanding} samples waiting for an update where the loader looks "
                f"ahead by at most {expected}: {outstanding - expected} went without "
                "one, so the losses can no longer be matched to samples. If a batch was left out, "
                "call skip() for it; if a collate function drops samples or batches vary in size, "
                "carry the index in the batch (Pruner, Indexed, with_index)."
            )
        if self.lookahead is None:
            self.lookahead = outstanding
        start, self.taken = self.taken, self.taken + count
        self._everyones = None  # an exchange in mid-epoch, for a checkpoint, is out of date
        self.largest_batch = max(self.largest_batch, count)
        self._last = (start, count)
        return start

    def fetches_on_demand(self, batch_size: int | None) -> bool:
        """Whether the loader is known to fetch a batch only when the loop asks for it."""
        return (
            self.lookahead is not None and batch_size is not None and self.lookahead <= batch_size
        )

    def record(self, values: torch.Tensor, start: int, count: int) -> None:
        """Write the losses of claimed positions."""
        losses = self._by_position
        if losses is None or losses.device != values.device:
            losses = self._positions_on(values.device)
        losses[start : start + count].copy_(values.detach())

    def record_nothing(self, start: int, count: int) -> None:
        """Mark claimed positions as visited without a score."""
        self._positions_on(self._device())[start : start + count] = _UNSCORED

    def record_at(self, index: torch.Tensor, values: torch.Tensor, *, finite: bool) -> None:
        """Write the losses of the samples ``index``; ``finite`` says that all are known to be."""
        if self._by_index is None or self._by_index.device != index.device:
            self._by_index = self._indices_on(index.device)
        values = values.detach()
        if not finite:  # a loss of minus infinity does not mean that the sample was not visited
            values = values.nan_to_num(_UNSCORED, _UNSCORED, _UNSCORED)
        if values.dtype is not torch.float32 or values.device != index.device:
            values = values.to(index.device, torch.float32)
        self._by_index.index_copy_(0, index, values)
        self._merged = self.ranks.world_size == 1
        self.taken += index.shape[0]
        self.largest_batch = max(self.largest_batch, index.shape[0])

    def _indices_on(self, device: torch.device) -> torch.Tensor:
        if self.ranks.sharded:
            raise RuntimeError(
                "update(index=…) got a pruner with sharded=True, expected the form without index: a "
                "rank knows the samples of its own share only. Use sharded=False."
            )
        if self._by_position is not None or len(self._earlier):
            raise RuntimeError(
                "update(index=…) follows an update without index in the same epoch. Expected one "
                "form throughout: pass index= to every update."
            )
        if self._by_index is None:
            return _unvisited(self.plan.num_samples, device)
        return self._by_index.to(device)

    def _device(self) -> torch.device:
        """Where the losses lie; before the first ones, on the CPU."""
        return torch.device("cpu") if self._by_position is None else self._by_position.device

    def _positions_on(self, device: torch.device) -> torch.Tensor:
        if self._by_position is None:
            self._by_position = _unvisited(len(self), device)
        elif self._by_position.device != device:
            self._by_position = self._by_position.to(device)
        return self._by_position

    # The weights that the training loop gets: divided by the batch's size, so that the weighted mean
    # is one dot product.

    def shares_of_mean(self, start: int, count: int, like: torch.Tensor) -> torch.Tensor | None:
        """Weight / count for some positions, on the losses' device; None where all weights are 1."""
        stop = start + count
        in_tail = stop > self._even
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
            chunk = self._chunk = self._unpack_weights(start, stop, like)
        if count == chunk.batch and not in_tail:
            return chunk.shares[start - chunk.start : stop - chunk.start]
        # Ranks average their means, repeats included; the global batch has only the real samples.
        real = int((self._shares - start).clip(0, count).sum())
        weights = chunk.weights[start - chunk.start : stop - chunk.start]
        return weights * (self.ranks.world_size / real)

    def shares_of_mean_at(self, index: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The same for the samples ``index``; NaN for one that this epoch's plan leaves out."""
        table = self._table
        if (
            table is None
            or table.batch != index.shape[0]
            or table.losses_dtype is not like.dtype
            or table.codes.device != like.device
        ):
            table = self._table = self._tabulate(index.shape[0], like)
        return table.shares.index_select(0, table.codes.index_select(0, index).int())

    @torch.inference_mode(False)
    def _tabulate(self, batch: int, like: torch.Tensor) -> _Table:
        if self._table is not None and self._table.codes.device == like.device:
            codes = self._table.codes
        else:
            by_place = np.full(self.plan.num_samples, len(self.plan.class_weights), np.uint8)
            by_place[self.plan.places(self.plan.words)] = self.plan.classes(self.plan.words)
            codes = torch.from_numpy(by_place).to(like.device)
        weights = torch.from_numpy(np.append(self.plan.class_weights, np.nan)) / batch
        dtype = torch.promote_types(like.dtype, torch.float32)
        return _Table(batch, like.dtype, codes, weights.to(like.device, dtype))

    def shares_of_last_mean(self, losses: torch.Tensor) -> torch.Tensor | None:
        """The same for the positions that were claimed last, for a second forward."""
        if self._last is None or self._last[1] != len(losses):
            size = None if self._last is None else self._last[1]
            raise RuntimeError(
                f"reweight() got {len(losses)} losses, expected as many as the last update() of this "
                f"epoch had ({size}). Call update() for the batch first, or pass index=."
            )
        return self.shares_of_mean(*self._last, like=losses)

    @torch.inference_mode(False)
    def _unpack_weights(self, start: int, stop: int, like: torch.Tensor) -> _Chunk:
        count = stop - start
        stop = min(max(stop, start + _WEIGHTS_AT_ONCE), self._length)
        words = self._own_words(start, stop)
        classes = words >> words.dtype.type(self.plan.place_bits)
        signed = classes.view(np.int32 if classes.dtype == np.uint32 else np.int64)
        dtype = torch.promote_types(like.dtype, torch.float32)
        by_class = torch.from_numpy(self.plan.class_weights).to(dtype)
        weights = by_class.index_select(0, torch.from_numpy(signed))
        weights[max(len(self._own) - start, 0) :] = 0.0  # repeats that fill up a share
        weights = weights.to(like.device, non_blocking=True)
        return _Chunk(start, stop, count, like.dtype, weights, weights / count)

    # What becomes of it.

    @property
    def started(self) -> bool:
        """Whether this walk has recorded anything."""
        return self.taken > 0

    def planned(self) -> int:
        """The samples of the epoch, over all ranks."""
        return int(self._shares.sum()) + self._before

    def done(self) -> int:
        """Sample passes made of the plan, over all ranks, repeats not counted.

        Reckoned from what this rank has done; the same on each, so that learning rates can go by it.
        """
        taken = self.taken
        if self.ranks.global_order and taken:
            # All ranks take part in the one walk, some of them perhaps with a smaller last batch.
            taken = -(-taken // self.largest_batch) * self.largest_batch * self.ranks.world_size
        return self.reached(taken)

    def reached(self, positions: int) -> int:
        """Samples of the plan that so many positions on every walk come to."""
        return int(self._shares.clip(max=positions).sum()) + self._before

    def recorded(self) -> int:
        """How many of this plan's first positions have been done."""
        if self.ranks.sharded:
            return len(self._earlier) + min(self.taken, len(self._own))
        return self.done()

    def discard(self) -> None:
        """Forget the losses of this walk; its passes still count."""
        if self._by_position is not None:
            self._by_position[: self.taken].fill_(_UNSCORED)

    def on(self, ranks: Ranks) -> Ledger:
        """The same epoch, not begun, for another set of ranks."""
        return Ledger(self.plan, ranks, earlier=self._earlier, by_index=self._by_index)

    @property
    def by_index(self) -> bool:
        """Whether the batches carry their samples' indices."""
        return self._by_index is not None

    def visited(self) -> int:
        """Like ``done``, but counted rather than reckoned where it can be; waits for the device."""
        if self._by_index is not None and self._merged:
            return int((self._by_index != _UNVISITED).sum())
        if self._everyones is not None:
            return self._before + int((self._everyones != _UNVISITED).sum())
        return self.done()

    def exchange(self) -> None:
        """Bring the other ranks' losses here. Collective."""
        if self.ranks.world_size == 1 or self.ranks.sharded:
            return
        form = 2 if self._by_index is not None else int(self._by_position is not None)
        header = torch.tensor([fingerprint(self.plan), len(self.plan), len(self._words), form])
        headers = self.ranks.gather(header).cpu()
        if not bool((headers[:, :3] == headers[0, :3]).all()):
            raise RuntimeError(
                "The ranks have drawn different plans for this epoch, so their losses cannot be put "
                "together. Expected the same seed, policy, delta, num_epochs and data on each, and "
                "the same state loaded on each."
            )
        forms = set(headers[:, 3].tolist()) - {0}
        if not forms:
            return
        if len(forms) > 1:
            raise RuntimeError(
                "Some ranks call update() with index= and others without. Expected one form on all."
            )
        if forms == {2}:
            own = self._by_index
            if own is None:
                own = _unvisited(self.plan.num_samples, torch.device("cpu"))
            self._by_index = self.ranks.maximum(own)
            self._merged = True
        else:
            rows = self.ranks.gather(self._own_losses())
            self._everyones = rows.T.reshape(-1)[: len(self._words)]

    def _own_losses(self) -> torch.Tensor:
        if self._by_position is None:
            return _unvisited(len(self), torch.device("cpu"))
        # A loss of minus infinity does not mean that the sample was not visited.
        self._by_position[: self.taken].nan_to_num_(_UNSCORED, _UNSCORED, _UNSCORED)
        return self._by_position

    def losses_by_position(self) -> FloatArray:
        """The losses by the plan's positions, as far as they are known here."""
        if self._everyones is not None:
            walked = self._everyones
        elif self.ranks.sharded or self.ranks.walkers == 1:
            walked = self._own_losses()[: len(self._own)]
        else:
            rows = _unvisited(len(self) * self.ranks.world_size, torch.device("cpu"))
            rows[self.ranks.rank :: self.ranks.world_size] = self._own_losses().cpu()
            walked = rows[: len(self._words)]
        losses: FloatArray = walked.cpu().numpy()
        return np.concatenate([self._earlier, losses]) if len(self._earlier) else losses

    def losses_by_index(self) -> FloatArray:
        """The losses by sample index, where the batches carry it."""
        assert self._by_index is not None
        losses: FloatArray = self._by_index.cpu().numpy()
        return losses

    def unscored(self) -> int:
        """How many of the passes that are known here brought no score."""
        losses = self.losses_by_index() if self.by_index else self.losses_by_position()
        blocks = range(0, len(losses), _FOLD_BLOCK)  # a mask of all would add to a boundary's peak
        return sum(int((losses[at : at + _FOLD_BLOCK] == _UNSCORED).sum()) for at in blocks)

    def unscored_by_all(self) -> int:
        """The same of all ranks, after the exchange. Collective if the scores are sharded."""
        if not self.ranks.sharded:
            return self.unscored()
        return int(self.ranks.sum(np.array([self.unscored()], np.float64))[0])

    def fold_into(self, scores: FloatArray) -> None:
        """Write the finite losses into the scores."""
        if self.by_index:
            losses = self.losses_by_index()
            np.copyto(scores, losses, where=np.isfinite(losses))
            return
        losses = self.losses_by_position()
        for start in range(0, len(losses), _FOLD_BLOCK):
            block = losses[start : start + _FOLD_BLOCK]
            places = self.plan.places(self.plan.words[start : start + _FOLD_BLOCK])
            finite = np.isfinite(block)
            if finite.all():
                scores[places] = block
            else:
                scores[places[finite]] = block[finite]
