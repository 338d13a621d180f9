"""What an epoch has recorded so far: the hash of each visited key, its score, and further values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from infobatch.keyed.chance import Hashes
from infobatch.memory.memory import SCORE

Values = dict[str, npt.NDArray[Any]]
# Updates after which it is checked that keys do not repeat; then at each doubling.
_FIRST_CHECK = 32


class Visits(NamedTuple):
    """Visited keys and what was reported for them, by name; NaN where a value was not finite."""

    hashes: Hashes
    values: Values

    def sorted(self) -> Visits:
        """Each key once, in ascending order, with the largest value if it came several times.

        The result does not depend on which rank visited which key in which order.
        """
        order = self.hashes.argsort(kind="stable")
        hashes = self.hashes[order]
        first = np.ones(len(hashes), np.bool_)
        first[1:] = hashes[1:] != hashes[:-1]
        if first.all():
            return Visits(hashes, {name: column[order] for name, column in self.values.items()})
        starts = np.flatnonzero(first)
        largest = {
            name: np.fmax.reduceat(column[order], starts) for name, column in self.values.items()
        }
        return Visits(hashes[starts], largest)


class Record:
    """The visits of the running epoch, in the order of the updates.

    Scores stay on the device that computed them until the epoch is over, so that a step does not
    wait for it.
    """

    def __init__(self, epoch: int, channels: Sequence[str], earlier: Visits | None = None) -> None:
        self._epoch = epoch
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._values = {name: torch.empty(0) for name in (SCORE, *channels)}
        self._check_at = _FIRST_CHECK
        self._largest = 0
        self.count = 0
        if earlier is not None and len(earlier.hashes):
            nothing = np.full(len(earlier.hashes), np.nan, np.float32)
            known = {name: earlier.values.get(name, nothing) for name in self._values}
            self.add(earlier.hashes, {name: torch.from_numpy(v) for name, v in known.items()})

    def add(self, hashes: Hashes, values: Mapping[str, torch.Tensor]) -> None:
        """Record a batch; ``values`` has those of all names, detached.

        Raises:
            RuntimeError: if so many keys came again that this cannot be the same epoch.
        """
        stop = self.count + len(hashes)
        if stop > len(self._hashes):
            self._grow(2 * stop, values)
        self._hashes[self.count : stop] = hashes
        for name, buffer in self._values.items():
            if buffer.device != values[name].device:
                buffer = self._values[name] = buffer.to(values[name].device)  # noqa: PLW2901
            buffer[self.count : stop].copy_(values[name])
        self.count = stop
        self._largest = max(self._largest, len(hashes))
        if stop >= self._check_at:
            self._check_at = 2 * stop
            self._check_repeats()

    @torch.inference_mode(False)  # a buffer must outlive the mode in which it is created
    def _grow(self, size: int, like: Mapping[str, torch.Tensor]) -> None:
        hashes = np.empty(size, np.uint64)
        hashes[: self.count] = self._hashes[: self.count]
        self._hashes = hashes
        for name, old in self._values.items():
            buffer = torch.empty(size, dtype=torch.float32, device=like[name].device)
            if self.count:
                buffer[: self.count] = old[: self.count]
            self._values[name] = buffer

    def _check_repeats(self) -> None:
        ordered = np.sort(self._hashes[: self.count])
        distinct = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
        repeated = self.count - distinct
        if repeated > max(self._largest, distinct // 10):
            raise RuntimeError(
                f"update() got {self.count:,} keys in epoch {self._epoch}, but only {distinct:,} "
                "different ones. Call set_epoch(epoch) before each epoch. If it is called, keys repeat "
                "within an epoch: give each sample a key of its own (the name within an archive, for "
                "instance, together with the archive's), and read each once per epoch, without repeat(), "
                "resampling, or a with_epoch() that is longer than the data."
            )

    def visits(self) -> Visits:
        """Everything recorded by this rank; waits for the device."""
        values = {}
        for name, buffer in self._values.items():
            column = buffer[: self.count].cpu().numpy().copy()
            column[~np.isfinite(column)] = np.nan
            values[name] = column
        return Visits(self._hashes[: self.count].copy(), values)
