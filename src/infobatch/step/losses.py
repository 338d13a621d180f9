"""The running epoch's losses, by position or by sample index: two classes, one interface.

They are kept in a buffer on the device that computed them and reach main memory once, when the epoch
is over. A step therefore copies a few numbers on the device and needs no synchronisation or
communication. In a buffer, minus infinity means "not visited" and plus infinity "visited, no score".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infobatch.memory.memory import Rows
from infobatch.plan import FloatArray
from infobatch.step.route import Route

_UNVISITED = float("-inf")
_UNSCORED = float("inf")
_LOWEST = torch.finfo(torch.float32).min  # stands for a loss of minus infinity until it is cleaned
_BLOCK = 1 << 16  # rows at a time: masks of all rows would add to peak memory

Reported = Sequence[torch.Tensor | None]  # by channel, detached; None where nothing is reported


class Losses(ABC):
    """What an epoch's samples report: in the first channel their scores, in others further values."""

    def __init__(self, num_channels: int, route: Route) -> None:
        self._num_channels, self._route = num_channels, route
        self._buffer: torch.Tensor | None = None
        self._channels: Sequence[torch.Tensor] = ()  # the buffer's rows
        self._known: FloatArray | None = None  # in main memory, until more is recorded

    @property
    def device(self) -> torch.device:
        """Where they are; main memory before the first."""
        return torch.device("cpu") if self._buffer is None else self._buffer.device

    def known(self) -> FloatArray:
        """What this rank knows: a row per channel, by position in the plan or for all samples."""
        if self._known is None:
            self._known = self._fetch()
        return self._known

    def unscored(self) -> int:
        """How many known passes gave no score: the loss was not finite, or the batch was skipped."""
        return _equal_to(_UNSCORED, self.known()[0])

    def blocks(self, channel: int = 0) -> Iterator[tuple[Rows, FloatArray]]:
        """The finite values of a channel and their rows in the memory."""
        return self._blocks(0, self.known()[channel])

    def _blocks(self, first: int, values: FloatArray) -> Iterator[tuple[Rows, FloatArray]]:
        """The finite ones of the values from number ``first`` on, with their rows."""
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            rows = self._rows(first + start, first + start + len(block))
            finite = np.isfinite(block)
            if finite.all():
                yield rows, block
            elif isinstance(rows, slice):
                yield rows.start + np.flatnonzero(finite), block[finite]
            else:
                yield rows[finite], block[finite]

    @abstractmethod
    def follow(self, source: int) -> None:
        """Take over what a rank of the model group has recorded, in place of this rank's. Collective."""

    @abstractmethod
    def exchange(self) -> None:
        """Fetch the other ranks' losses. Collective."""

    @abstractmethod
    def visited(self) -> int | None:
        """How many samples were visited over all ranks, if known; waits for the device."""

    @abstractmethod
    def _fetch(self) -> FloatArray:
        """Copy everything into main memory; waits for the device."""

    @abstractmethod
    def _rows(self, start: int, stop: int) -> Rows:
        """The rows in the memory of some of the known losses."""

    def _channels_on(self, device: torch.device, size: int) -> Sequence[torch.Tensor]:
        """The channels, each with ``size`` values, on a device."""
        if self._buffer is None:
            self._buffer = _unvisited((self._num_channels, size), device)
        if self._buffer.device != device:
            self._buffer = self._buffer.to(device)
        self._channels = self._buffer.unbind()
        return self._channels


class PositionLosses(Losses):
    """One loss per position of this rank's route; ``earlier`` are a checkpoint's."""

    def __init__(self, num_channels: int, route: Route, earlier: FloatArray | None = None) -> None:
        super().__init__(num_channels, route)
        self._earlier = np.empty((num_channels, 0), np.float32) if earlier is None else earlier
        self._updated = 0
        self._counts: tuple[int, int] | None = None  # visited and unscored, of all ranks if known
        self._lazy = False  # XLA would compile a program for each slice

    def record(self, start: int, count: int, reported: Reported) -> None:
        """Write what some positions report, detached."""
        channels, scores = self._channels, reported[0]
        assert scores is not None
        if not channels or channels[0].device != scores.device:
            channels = self._begin(scores.device)
        self._updated = stop = start + count
        # An exchange in the middle of the epoch, for a checkpoint, is now out of date.
        self._known, self._counts = None, None
        for channel, values in zip(channels, reported):  # noqa: B905 - checked, and called often
            if values is None:
                continue
            if self._lazy:
                positions = torch.arange(start, stop).to(channel.device)
                channel.index_copy_(0, positions, values.to(channel.dtype))
            else:
                channel[start:stop] = values

    def record_nothing(self, start: int, count: int) -> None:
        """Mark positions as visited without a score."""
        self._updated = start + count
        self._known, self._counts = None, None
        for channel in self._channels:
            channel[start : self._updated].fill_(_UNSCORED)

    def _begin(self, device: torch.device) -> Sequence[torch.Tensor]:
        is_new, self._lazy = self._buffer is None, device.type == "xla"
        channels = self._channels_on(device, len(self._route))
        if is_new and self._updated:  # skipped before anything was recorded
            for channel in channels:
                channel[: self._updated].fill_(_UNSCORED)
        return channels

    def discard(self) -> None:
        """Forget the losses of this pass; its samples still count as visited."""
        self._buffer, self._channels, self._known, self._counts = None, (), None, None

    def follow(self, source: int) -> None:
        """See :class:`Losses`."""
        model, longest = self._route.ranks.model, self._route.longest
        channels = [model.broadcast(channel, source) for channel in self._walked()]
        self._buffer = _unvisited((self._num_channels, len(self._route)), torch.device("cpu"))
        self._buffer[:, :longest] = torch.stack(channels)
        self._channels, self._updated = self._buffer.unbind(), 0
        self._known, self._counts = None, None

    def exchange(self) -> None:
        """See :class:`Losses`."""
        walked = np.empty((self._num_channels, len(self._route.left)), np.float32)
        for number, channel in enumerate(walked):
            for start, chunk in self._chunks(number):
                channel[start : start + len(chunk)] = chunk
        self._known = self._with_earlier(walked)

    def merged_blocks(self, channel: int = 0) -> Iterator[tuple[Rows, FloatArray]]:
        """As ``blocks``, over all ranks, whose losses are fetched on the way. Collective."""
        earlier = self._earlier[channel]
        yield from self._blocks(0, earlier)
        for start, chunk in self._chunks(channel):
            yield from self._blocks(len(earlier) + start, chunk)

    def _chunks(self, channel: int) -> Iterator[tuple[int, FloatArray]]:
        """All ranks' losses in the order of what was left of the plan, each with where it starts."""
        start, stop = 0, len(self._route.left)
        visited, unscored = self._route.visited_before, _equal_to(_UNSCORED, self._earlier[0])
        for rounds in self._route.ranks.communicator.rounds(self._walked()[channel]):
            chunk: FloatArray = rounds[: stop - start].numpy()  # without the repeats at the end
            _clean(chunk)
            visited += len(chunk) - _equal_to(_UNVISITED, chunk)
            unscored += _equal_to(_UNSCORED, chunk)
            yield start, chunk
            start += len(rounds)
        if not channel:  # the scores
            self._counts = (visited, unscored)

    def recorded_here(self) -> tuple[npt.NDArray[Any], FloatArray]:
        """Codes of the plan, and what was reported for them: a part of the epoch for each rank."""
        codes = self._route.shard
        known = _cleaned(self._walked(on_host=True))[:, : len(codes)]
        if not self._route.ranks.rank:  # all ranks have what a checkpoint has made: it counts once
            earlier = self._route.plan.codes[: self._earlier.shape[1]]
            codes = np.concatenate([earlier, codes])
            known = self._with_earlier(known)
        return codes, known

    def unscored(self) -> int:
        """See :class:`Losses`."""
        return super().unscored() if self._counts is None else self._counts[1]

    def visited(self) -> int | None:
        """See :class:`Losses`."""
        return None if self._counts is None else self._counts[0]

    def _walked(self, *, on_host: bool = False) -> torch.Tensor:
        """This rank's channels, for as many positions as the longest of all routes has."""
        if self._buffer is None:
            self._begin(torch.device("cpu"))
        assert self._buffer is not None
        buffer = self._buffer.cpu() if on_host else self._buffer
        buffer[:, : self._updated].clamp_(min=_LOWEST)  # minus infinity means "not visited"
        return buffer[:, : self._route.longest]

    def _fetch(self) -> FloatArray:
        ranks, recorded = self._route.ranks, _cleaned(self._walked(on_host=True))
        if ranks.sharded or ranks.walkers == 1:
            return self._with_earlier(recorded[:, : len(self._route.shard)])
        rows = np.full(
            (len(recorded), recorded.shape[1] * ranks.world_size), _UNVISITED, np.float32
        )
        rows[:, ranks.rank :: ranks.world_size] = recorded
        return self._with_earlier(rows[:, : len(self._route.left)])

    def _with_earlier(self, walked: FloatArray) -> FloatArray:
        """A checkpoint's losses, and after them those of this walk."""
        resumed = self._earlier.shape[1] > 0
        return np.concatenate([self._earlier, walked], axis=1) if resumed else walked

    def _rows(self, start: int, stop: int) -> Rows:
        plan = self._route.plan
        return plan.rows(plan.codes[start:stop])


class IndexLosses(Losses):
    """One loss per sample of the data set, for batches that carry their samples' indices."""

    def __init__(self, num_channels: int, route: Route, earlier: FloatArray | None = None) -> None:
        super().__init__(num_channels, route)
        self._num_samples, self._ranks = route.plan.num_samples, route.ranks
        self._buffer = None if earlier is None else torch.from_numpy(earlier)
        self._merged = earlier is not None or self._ranks.world_size == 1

    def record(self, index: torch.Tensor, reported: Reported, *, finite: bool = False) -> None:
        """Write what the samples ``index`` report; ``finite`` if all scores are known to be finite."""
        channels = self._channels
        if not channels or channels[0].device != index.device:
            channels = self._channels_on(index.device, self._num_samples)
        for channel, values in zip(channels, reported):  # noqa: B905 - checked, and called often
            if values is None:
                continue
            stored = values
            if values.dtype is not torch.float32 or values.device != index.device:
                stored = values.to(index.device, torch.float32)
            if not finite or channel is not channels[0]:
                # A loss of minus infinity does not mean that the sample was not visited.
                stored = stored.clamp(min=_LOWEST)
            if self._ranks.world_size > 1:
                # A loader that pads its last batches visits some samples twice, perhaps on two ranks.
                # As in an exchange, the larger loss counts, whether or not there was one in between.
                stored = torch.maximum(stored, channel.index_select(0, index))
            channel.index_copy_(0, index, stored)
        self._known, self._merged = None, self._ranks.world_size == 1

    def record_nothing(self, index: torch.Tensor) -> None:
        """Mark samples as visited without a score."""
        nothing = torch.full(index.shape, _UNSCORED, device=index.device)
        self.record(index, [nothing] * self._num_channels)

    def follow(self, source: int) -> None:
        """See :class:`Losses`."""
        model = self._ranks.model
        self._replace([model.broadcast(channel, source) for channel in self._comparable()])
        self._merged = self._ranks.world_size == 1

    def exchange(self) -> None:
        """See :class:`Losses`."""
        communicator = self._ranks.communicator
        self._replace([communicator.maximum(channel) for channel in self._comparable()])
        self._merged = True

    def _comparable(self) -> Sequence[torch.Tensor]:
        """The channels without NaN, of which backends would make different maxima."""
        channels = self._channels_on(self.device, self._num_samples)
        for channel in channels:
            channel.masked_fill_(channel.isnan(), _UNSCORED)
        return channels

    def _replace(self, channels: Sequence[torch.Tensor]) -> None:
        self._buffer, self._channels, self._known = torch.stack(list(channels)), (), None

    def visited(self) -> int | None:
        """See :class:`Losses`."""
        return self.visited_here() if self._merged else None

    def visited_here(self) -> int:
        """How many samples were visited as far as this rank knows; waits for the device."""
        return self._num_samples - _equal_to(_UNVISITED, self.known()[0])

    def _fetch(self) -> FloatArray:
        if self._buffer is None:
            self._channels_on(torch.device("cpu"), self._num_samples)
        assert self._buffer is not None
        return _cleaned(self._buffer)

    def _rows(self, start: int, stop: int) -> Rows:
        return slice(start, stop)


def was_visited(losses: FloatArray) -> npt.NDArray[np.bool_]:
    """Which losses belong to visited samples."""
    visited: npt.NDArray[np.bool_] = losses != _UNVISITED
    return visited


def _equal_to(value: float, losses: FloatArray) -> int:
    blocks = range(0, len(losses), _BLOCK)
    return sum(int(np.count_nonzero(losses[at : at + _BLOCK] == value)) for at in blocks)


def _cleaned(channels: torch.Tensor) -> FloatArray:
    """The channels in main memory, with ``_UNSCORED`` for everything that is no score."""
    losses: FloatArray = channels.cpu().numpy()
    for channel in losses:
        _clean(channel)
    return losses


def _clean(losses: FloatArray) -> None:
    """Turn everything that is no score into ``_UNSCORED``, in place, except for ``_UNVISITED``."""
    for start in range(0, len(losses), _BLOCK):
        block = losses[start : start + _BLOCK]
        usable = np.isfinite(block) & (block != _LOWEST)
        if not usable.all():
            block[~usable & (block != _UNVISITED)] = _UNSCORED


@torch.inference_mode(False)  # a buffer must outlive the mode in which it is created
def _unvisited(shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    if device.type == "cpu":  # numpy asks for huge pages: faster random access
        return torch.from_numpy(np.full(shape, _UNVISITED, np.float32))
    return torch.full(shape, _UNVISITED, dtype=torch.float32, device=device)
