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
        self._code_weights: torch.Tensor | None = None
        self._weights: torch.Tensor | None = None
        self._weights_start = 0
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
        """Return the first of the next ``count`` positions, or refuse where counts do not agree."""
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
        return self.taken

    def record_next(self, values: torch.Tensor, start: int, handed_out: int) -> None:
        """Write the losses of claimed positions."""
        count = len(values)
        self._positions_on(values.device)[start : start + count].copy_(values.detach())
        self._advance(start, count, handed_out)

    def skip_next(self, count: int, start: int, handed_out: int) -> None:
        """Pass over claimed positions: visited, but no score."""
        device = self._by_position.device if self._by_position is not None else torch.device("cpu")
        self._positions_on(device)[start : start + count] = _UNSCORED
        self._advance(start, count, handed_out)

    def record_at(self, index: torch.Tensor, values: torch.Tensor | float) -> None:
        """Write the losses of the samples ``index``."""
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
            self._by_index = torch.full((self.plan.num_samples,), _UNVISITED, device=index.device)
        elif self._by_index.device != index.device:
            self._by_index = self._by_index.to(index.device)
        if isinstance(values, torch.Tensor):
            self._by_index[index] = values.detach().to(torch.float32)
        else:
            self._by_index[index] = values
        self.taken += len(index)

    def _advance(self, start: int, count: int, handed_out: int) -> None:
        if self.lookahead is None:
            self.lookahead = handed_out - self.taken
        self.taken = start + count
        self._last = (start, count)

    def _positions_on(self, device: torch.device) -> torch.Tensor:
        if self._by_position is None:
            self._by_position = torch.full((len(self),), _UNVISITED, device=device)
        elif self._by_position.device != device:
            self._by_position = self._by_position.to(device)
        return self._by_position

    # The weights that the training loop gets.

    def weights_at_positions(
        self, start: int, count: int, like: torch.Tensor
    ) -> torch.Tensor | None:
        """The weights of some positions, on the losses' device; None where all are 1."""
        in_tail = start + count > self._shares.min()
        if self.plan.whole and not in_tail:
            return None
        dtype = torch.promote_types(like.dtype, torch.float32)
        chunk = self._weights
        if (
            chunk is None
            or start < self._weights_start
            or start + count > self._weights_start + len(chunk)
            or chunk.device != like.device
            or chunk.dtype != dtype
        ):
            stop = min(max(start + count, start + _WEIGHTS_AT_ONCE), len(self))
            chunk = self._unpack_weights(start, stop).to(like.device, dtype, non_blocking=True)
            self._weights, self._weights_start = chunk, start
        offset = start - self._weights_start
        weights = chunk[offset : offset + count]
        if in_tail:
            # Ranks average their means, repeats included; the global batch has fewer real samples.
            real = int((self._shares - start).clip(0, count).sum())
            weights = weights * (count * self.ranks.world_size / real)
        return weights

    def weights_at_index(self, index: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The weights of the samples ``index``; NaN for one that this epoch's plan leaves out."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self._codes is None or self._code_weights is None or self._codes.device != like.device:
            codes = np.full(self.plan.num_samples, len(self.plan.class_weights), np.uint8)
            codes[self.plan.places(self.plan.words)] = self.plan.classes(self.plan.words)
            self._codes = torch.from_numpy(codes).to(like.device)
            by_code = torch.tensor([*self.plan.class_weights.tolist(), float("nan")])
            self._code_weights = by_code.to(like.device, dtype)
        if self._code_weights.dtype != dtype:
            self._code_weights = self._code_weights.to(dtype)
        return self._code_weights[self._codes[index].int()]

    def last_weights(self, losses: torch.Tensor) -> torch.Tensor | None:
        """The weights of the positions that were claimed last, for a second forward."""
        if self._last is None or self._last[1] != len(losses):
            size = None if self._last is None else self._last[1]
            raise RuntimeError(
                f"reweight() got {len(losses)} losses, expected as many as the last update() of this "
                f"epoch had ({size}). Call update() for the batch first, or pass index=."
            )
        return self.weights_at_positions(*self._last, like=losses)

    def _unpack_weights(self, start: int, stop: int) -> torch.Tensor:
        weights = self.plan.class_weights[self.plan.classes(self._own_words(start, stop))]
        weights[max(len(self._own) - start, 0) :] = 0.0  # repeats that fill up a share
        return torch.from_numpy(weights)

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
        device = self._by_position.device if self._by_position is not None else torch.device("cpu")
        if self._by_index is not None:
            own = self._by_index[
                torch.from_numpy(self.indices(0, len(self))).to(self._by_index.device)
            ]
        else:
            own = self._positions_on(device)
            own[: self.taken].masked_fill_(own[: self.taken] == _UNVISITED, _UNSCORED)
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
