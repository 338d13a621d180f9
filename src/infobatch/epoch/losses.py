"""The running epoch's losses, by position or by sample index: two classes, one interface.

They are kept in a buffer on the device that computed them and reach the memory only when the epoch
is over. A step therefore copies a few numbers on the device and needs no synchronisation, scatter
or communication. In a buffer, minus infinity means "not visited" and plus infinity "visited, no
score".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed.ranks import Ranks
from infobatch.epoch.route import Route
from infobatch.memory.memory import Rows
from infobatch.plan import FloatArray

Earlier = Mapping[str, FloatArray | None]  # names, with the values of a checkpoint

NO_EXTRAS: Earlier = MappingProxyType({})
_UNVISITED = float("-inf")
_UNSCORED = float("inf")
_BLOCK = 1 << 16  # rows at a time: masks of all rows would add to peak memory


class Losses(Protocol):
    """The interface of an epoch's losses, however they are stored.

    ``extras`` are the values reported for each sample besides its score, by name, in the same form.
    """

    form: str  # "position" or "index", as in a checkpoint

    @property
    def extras(self) -> Mapping[str, Losses]:
        """The values reported besides the score."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the losses are recorded."""
        ...

    def discard(self) -> None:
        """Forget the losses of this pass; its samples still count as visited."""
        ...

    def follow(self, source: int) -> None:
        """Take over what a rank of the model group has recorded, in place of this rank's. Collective."""
        ...

    def exchange(self) -> None:
        """Fetch the other ranks' losses. Collective."""
        ...

    def visited(self) -> int | None:
        """How many samples were visited over all ranks, if known; waits for the device."""
        ...

    def known(self) -> FloatArray:
        """The losses known to this rank, by position in the plan or for all samples."""
        ...

    def unscored(self) -> int:
        """How many known passes gave no score: the loss was not finite, or the batch was skipped."""
        ...

    def blocks(self) -> Iterator[tuple[Rows, FloatArray]]:
        """The finite losses and their rows in the memory."""
        ...

    def merged_blocks(self) -> Iterator[tuple[Rows, FloatArray]]:
        """The same over all ranks, whose losses are fetched on the way. Collective."""
        ...


class PositionLosses:
    """One loss per position of this rank's route; ``earlier`` are a checkpoint's losses.

    ``extras`` has the names of the values reported besides them, each with a checkpoint's values.
    """

    form = "position"

    def __init__(
        self, route: Route, earlier: FloatArray | None = None, extras: Earlier = NO_EXTRAS
    ) -> None:
        self.extras = {name: PositionLosses(route, known) for name, known in extras.items()}
        self._route = route
        self._earlier = np.empty(0, np.float32) if earlier is None else earlier
        self._own: torch.Tensor | None = None
        self._updated = 0
        self._everyones: FloatArray | None = None  # after an exchange
        self._counts: tuple[int, int] | None = None  # of visited and unscored samples, once merged

    @property
    def device(self) -> torch.device:
        """See :class:`Losses`."""
        return torch.device("cpu") if self._own is None else self._own.device

    def record(self, values: torch.Tensor, start: int, count: int) -> None:
        """Write the losses of some positions, detached."""
        buffer = self._own
        if buffer is None or buffer.device != values.device:
            buffer = self._on(values.device)
        self._updated = stop = start + count
        buffer[start:stop].copy_(values)
        self._everyones = None  # a mid-epoch exchange, for a checkpoint, is now out of date

    def record_nothing(self, start: int, count: int) -> None:
        """Mark positions as visited without a score."""
        device = torch.device("cpu") if self._own is None else self._own.device
        self._updated = start + count
        self._on(device)[start : self._updated] = _UNSCORED
        self._everyones = None
        for extra in self.extras.values():
            extra.record_nothing(start, count)

    def _on(self, device: torch.device) -> torch.Tensor:
        if self._own is None:
            self._own = _unvisited(len(self._route), device)
        elif self._own.device != device:
            self._own = self._own.to(device)
        return self._own

    def discard(self) -> None:
        """See :class:`Losses`."""
        if self._own is not None:
            self._own[: self._updated].fill_(_UNSCORED)
        for extra in self.extras.values():
            extra.discard()

    def follow(self, source: int) -> None:
        """See :class:`Losses`."""
        self._own = self._route.ranks.model.broadcast(self._own_losses(), source)
        self._everyones = None
        for extra in self.extras.values():
            extra.follow(source)

    def exchange(self) -> None:
        """See :class:`Losses`."""
        self._everyones = np.empty(len(self._route.left), np.float32)
        for start, chunk in self._chunks():
            self._everyones[start : start + len(chunk)] = chunk
        for extra in self.extras.values():
            extra.exchange()

    def _chunks(self) -> Iterator[tuple[int, FloatArray]]:
        """All ranks' losses in the order of what was left of the plan, each with where it starts."""
        start, stop = 0, len(self._route.left)
        for chunk in self._route.ranks.communicator.rounds(self._own_losses()):
            yield start, chunk[: stop - start].numpy()  # without the repeats at the end
            start += len(chunk)

    def _own_losses(self) -> torch.Tensor:
        if self._own is None:
            return _unvisited(len(self._route), torch.device("cpu"))
        # A loss of minus infinity does not mean that the sample was not visited.
        self._own[: self._updated].nan_to_num_(_UNSCORED, _UNSCORED, _UNSCORED)
        return self._own

    def visited(self) -> int | None:
        """See :class:`Losses`."""
        if self._counts is not None:
            return self._counts[0]
        if self._everyones is None:
            return None
        return self._route.visited_before + _visited(self._everyones)

    def unscored(self) -> int:
        """See :class:`Losses`."""
        return unscored(self.known()) if self._counts is None else self._counts[1]

    def known(self) -> FloatArray:
        """See :class:`Losses`."""
        ranks = self._route.ranks
        losses: FloatArray
        if self._everyones is not None:
            losses = self._everyones
        elif ranks.sharded or ranks.walkers == 1:
            losses = self._own_losses()[: len(self._route.shard)].cpu().numpy()
        else:
            rows = _unvisited(len(self._route) * ranks.world_size, torch.device("cpu"))
            rows[ranks.rank :: ranks.world_size] = self._own_losses().cpu()
            losses = rows[: len(self._route.left)].numpy()
        return np.concatenate([self._earlier, losses]) if len(self._earlier) else losses

    def blocks(self) -> Iterator[tuple[Rows, FloatArray]]:
        """See :class:`Losses`."""
        return self._blocks(0, self.known())

    def merged_blocks(self) -> Iterator[tuple[Rows, FloatArray]]:
        """See :class:`Losses`."""
        yield from self._blocks(0, self._earlier)
        visited, no_score = self._route.visited_before, unscored(self._earlier)
        for start, chunk in self._chunks():
            visited += _visited(chunk)
            no_score += unscored(chunk)
            yield from self._blocks(len(self._earlier) + start, chunk)
        self._counts = (visited, no_score)

    def _blocks(self, first: int, losses: FloatArray) -> Iterator[tuple[Rows, FloatArray]]:
        """The losses of the positions from ``first`` on, with their rows."""
        plan = self._route.plan
        for start in range(0, len(losses), _BLOCK):
            block = losses[start : start + _BLOCK]
            rows = plan.rows(plan.codes[first + start : first + start + len(block)])
            finite = np.isfinite(block)
            yield (rows, block) if finite.all() else (rows[finite], block[finite])


class IndexLosses:
    """One loss per sample of the data set, for batches that carry their samples' indices."""

    form = "index"

    def __init__(
        self,
        ranks: Ranks,
        num_samples: int,
        earlier: FloatArray | None = None,
        extras: Earlier = NO_EXTRAS,
    ) -> None:
        self.extras = {
            name: IndexLosses(ranks, num_samples, known) for name, known in extras.items()
        }
        self._ranks = ranks
        self._num_samples = num_samples
        self._values = None if earlier is None else torch.from_numpy(earlier)
        self._merged = earlier is not None or ranks.world_size == 1

    @property
    def device(self) -> torch.device:
        """See :class:`Losses`."""
        return torch.device("cpu") if self._values is None else self._values.device

    def record(self, index: torch.Tensor, values: torch.Tensor, *, finite: bool) -> None:
        """Write the losses of the samples ``index``; ``finite`` if all are known to be finite."""
        if self._values is None:
            self._values = _unvisited(self._num_samples, index.device)
        elif self._values.device != index.device:
            self._values = self._values.to(index.device)
        if not finite:  # a loss of minus infinity does not mean that the sample was not visited
            values = values.nan_to_num(_UNSCORED, _UNSCORED, _UNSCORED)
        if values.dtype is not torch.float32 or values.device != index.device:
            values = values.to(index.device, torch.float32)
        if self._ranks.world_size > 1:
            # A loader that pads its last batches visits some samples twice, perhaps on two ranks.
            # As in an exchange, the larger loss counts, whether or not there was one in between.
            values = torch.maximum(values, self._values[index])
        self._values.index_copy_(0, index, values)
        self._merged = self._ranks.world_size == 1

    def record_nothing(self, index: torch.Tensor) -> None:
        """Mark samples as visited without a score."""
        self.record(index, torch.full(index.shape, _UNSCORED, device=index.device), finite=True)
        for extra in self.extras.values():
            extra.record_nothing(index)

    def _all(self) -> torch.Tensor:
        if self._values is None:
            self._values = _unvisited(self._num_samples, torch.device("cpu"))
        return self._values

    def discard(self) -> None:
        """Do nothing: an index cannot refer to the wrong sample."""

    def follow(self, source: int) -> None:
        """See :class:`Losses`."""
        self._values = self._ranks.model.broadcast(self._all(), source)
        self._merged = self._ranks.world_size == 1
        for extra in self.extras.values():
            extra.follow(source)

    def exchange(self) -> None:
        """See :class:`Losses`."""
        self._merge()
        for extra in self.extras.values():
            extra.exchange()

    def _merge(self) -> None:
        self._values = self._ranks.communicator.maximum(self._all())
        self._merged = True

    def visited(self) -> int | None:
        """See :class:`Losses`."""
        return self.visited_here() if self._merged else None

    def visited_here(self) -> int:
        """How many samples were visited as far as this rank knows; waits for the device."""
        return int((self._all() != _UNVISITED).sum())

    def known(self) -> FloatArray:
        """See :class:`Losses`."""
        losses: FloatArray = self._all().cpu().numpy()
        return losses

    def unscored(self) -> int:
        """See :class:`Losses`."""
        return unscored(self.known())

    def merged_blocks(self) -> Iterator[tuple[Rows, FloatArray]]:
        """See :class:`Losses`."""
        self._merge()
        yield from self.blocks()

    def blocks(self) -> Iterator[tuple[Rows, FloatArray]]:
        """See :class:`Losses`."""
        losses = self.known()
        for start in range(0, len(losses), _BLOCK):
            block = losses[start : start + _BLOCK]
            finite = np.isfinite(block)
            if finite.all():
                yield slice(start, start + len(block)), block
            else:
                yield start + np.flatnonzero(finite), block[finite]


def unscored(losses: FloatArray) -> int:
    """How many passes gave no score: the loss was not finite, or the batch was skipped."""
    return _equal_to(_UNSCORED, losses)


def _visited(losses: FloatArray) -> int:
    return len(losses) - _equal_to(_UNVISITED, losses)


def _equal_to(value: float, losses: FloatArray) -> int:
    blocks = range(0, len(losses), _BLOCK)
    return sum(int(np.count_nonzero(losses[at : at + _BLOCK] == value)) for at in blocks)


def was_visited(losses: FloatArray) -> npt.NDArray[np.bool_]:
    """Which of a checkpoint's losses by index belong to visited samples."""
    visited: npt.NDArray[np.bool_] = losses != _UNVISITED
    return visited


@torch.inference_mode(False)  # a buffer must outlive the mode in which it is created
def _unvisited(count: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":  # numpy asks for huge pages: faster random access
        return torch.from_numpy(np.full(count, _UNVISITED, np.float32))
    return torch.full((count,), _UNVISITED, dtype=torch.float32, device=device)
