"""One epoch under way on one rank: where it stands, the losses it has brought, the weights it gives.

The losses of an epoch lie in a buffer on the device that computed them, position by position (or by
sample index, where the batch carries it), and reach the scores only when the epoch is over. So a
step copies a few numbers on the device and needs no synchronisation, no scatter and no communication.
In a buffer, minus infinity means "not visited"; NaN and plus infinity mean "visited, no score".
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


class _Chunk(NamedTuple):
    """The weights of the positions from start to stop; shares are weights / batch."""

    start: int
    stop: int
    batch: int
    losses_dtype: torch.dtype
    weights: torch.Tensor
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
        self.lookahead: int | None = None  # most indices that may be out without an update
        self._earlier = np.empty(0, np.float32) if earlier is None else earlier
        self._by_index = by_index
        self._by_position: torch.Tensor | None = None
        self._codes: torch.Tensor | None = None
        self._shares_by_code: torch.Tensor | None = None
        self._by_code_key: tuple[int, torch.dtype] | None = None
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
            self._own = self._words[ranks.rank :: ranks.world_size]
            whole, more = divmod(len(self._words), ranks.world_size)
            self._shares = whole + (np.arange(ranks.world_size) < more)
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
        self._last = (start, count)
        return start

    def record(self, values: torch.Tensor, start: int, count: int) -> None:
        """Write the losses of claimed positions."""
        losses = self._by_position
        if losses is None or losses.device != values.device:
            losses = self._positions_on(values.device)
        losses[start : start + count].copy_(values.detach())

    def record_nothing(self, start: int, count: int) -> None:
        """Mark claimed positions as visited without a score."""
        self._positions_on(self._device())[start : start + count] = _UNSCORED

    def record_at(self, index: torch.Tensor, values: torch.Tensor) -> None:
        """Write the losses of the samples ``index``."""
        if self._by_index is None or self._by_index.device != index.device:
            self._by_index = self._indices_on(index.device)
        self._by_index.put_(index, values.detach().to(torch.float32))
        self.taken += index.shape[0]

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
            return torch.full((self.plan.num_samples,), _UNVISITED, device=device)
        return self._by_index.to(device)

    def _device(self) -> torch.device:
        """Where the losses lie; before the first ones, on the CPU."""
        return torch.device("cpu") if self._by_position is None else self._by_position.device

    def _positions_on(self, device: torch.device) -> torch.Tensor:
        if self._by_position is None:
            self._by_position = torch.full((len(self),), _UNVISITED, device=device)
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
        codes, by_code = self._codes, self._shares_by_code
        key = (index.shape[0], like.dtype)
        if (
            codes is None
            or by_code is None
            or self._by_code_key != key
            or codes.device != like.device
        ):
            if codes is None or codes.device != like.device:
                table = np.full(self.plan.num_samples, len(self.plan.class_weights), np.uint8)
                table[self.plan.places(self.plan.words)] = self.plan.classes(self.plan.words)
                codes = self._codes = torch.from_numpy(table).to(like.device)
            weights = torch.tensor([*self.plan.class_weights.tolist(), float("nan")])
            dtype = torch.promote_types(like.dtype, torch.float32)
            by_code = (weights / key[0]).to(like.device, dtype)
            self._shares_by_code, self._by_code_key = by_code, key
        return by_code.index_select(0, codes.index_select(0, index).int())

    def shares_of_last_mean(self, losses: torch.Tensor) -> torch.Tensor | None:
        """The same for the positions that were claimed last, for a second forward."""
        if self._last is None or self._last[1] != len(losses):
            size = None if self._last is None else self._last[1]
            raise RuntimeError(
                f"reweight() got {len(losses)} losses, expected as many as the last update() of this "
                f"epoch had ({size}). Call update() for the batch first, or pass index=."
            )
        return self.shares_of_mean(*self._last, like=losses)

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
        """Sample passes made of the plan, over all ranks, repeats not counted."""
        return int(self._shares.clip(max=self.taken).sum()) + self._before

    def recorded(self) -> int:
        """How many of this plan's first positions have been done."""
        if self.ranks.sharded:
            return len(self._earlier) + min(self.taken, len(self._own))
        return self.done()

    def discard(self) -> None:
        """Forget the losses of this walk; its passes still count."""
        if self._by_position is not None:
            self._by_position.fill_(_UNSCORED)

    def losses_by_position(self, *, gather: bool) -> FloatArray:
        """The losses by the plan's positions; of this rank alone, or collectively of all ranks."""
        if self._by_index is not None:
            own = self._by_index[
                torch.from_numpy(self.indices(0, len(self))).to(self._by_index.device)
            ]
        else:
            own = self._positions_on(self._device())
            for start in range(0, self.taken, _FOLD_BLOCK):
                block = own[start : min(start + _FOLD_BLOCK, self.taken)]
                block.masked_fill_(block == _UNVISITED, _UNSCORED)  # a loss of minus infinity
        if self.ranks.sharded:
            walked = own[: len(self._own)]
        elif gather:
            walked = self._gather(own)
        else:
            rows = torch.full((self.ranks.world_size, len(own)), _UNVISITED)
            rows[self.ranks.rank] = own
            walked = rows.T.reshape(-1)[: len(self._words)]
        losses: FloatArray = walked.cpu().numpy()
        return np.concatenate([self._earlier, losses]) if len(self._earlier) else losses

    def _gather(self, own: torch.Tensor) -> torch.Tensor:
        """Exchange the losses, with a number that tells plans apart at the end of each row."""
        if self.ranks.world_size == 1:
            return own
        check = torch.tensor([float(fingerprint(self.plan) % (1 << 24))], device=own.device)
        rows = self.ranks.gather(torch.cat([own, check]))
        if not bool((rows[:, -1] == rows[0, -1]).all()):
            raise RuntimeError(
                "The ranks have drawn different plans for this epoch, so their losses cannot be put "
                "together. Expected the same seed, policy, delta, num_epochs and data on each, and "
                "the same state loaded on each."
            )
        return rows[:, :-1].T.reshape(-1)[: len(self._words)]

    @property
    def by_index(self) -> bool:
        """Whether the batches carry their samples' indices."""
        return self._by_index is not None

    def losses_by_index(self, *, gather: bool) -> FloatArray:
        """The losses by sample index, where the batches carry it."""
        assert self._by_index is not None
        losses: FloatArray = self._by_index.cpu().numpy().copy()
        if self.ranks.world_size > 1:
            walked = self.losses_by_position(gather=gather)
            known = walked != _UNVISITED
            losses[self.plan.places(self._words)[known]] = walked[known]
        return losses

    def fold_into(self, scores: FloatArray, *, gather: bool) -> int:
        """Write the finite losses into the scores; return how many passes had none."""
        if self.by_index:
            losses = self.losses_by_index(gather=gather)
            finite = np.isfinite(losses)
            np.copyto(scores, losses, where=finite)
            return int(np.count_nonzero(~finite & (losses != _UNVISITED)))
        losses = self.losses_by_position(gather=gather)
        unscored = 0
        for start in range(0, len(losses), _FOLD_BLOCK):
            block = losses[start : start + _FOLD_BLOCK]
            places = self.plan.places(self.plan.words[start : start + _FOLD_BLOCK])
            finite = np.isfinite(block)
            if finite.all():
                scores[places] = block
            else:
                scores[places[finite]] = block[finite]
                unscored += int(np.count_nonzero(~finite & (block != _UNVISITED)))
        return unscored
