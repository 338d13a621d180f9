"""Communication between ranks: at the end of each epoch, and for a mid-epoch checkpoint.

Everything here gives the same bits on every rank, whatever the backend: a maximum and copies are
exact, and each sum is added up by one rank, which sends it to the others. (Backends promise the same
result of an all_reduce on every rank, but not in which order they add, so a plan drawn from such sums
could be another one after a resume.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

MEETING_SECONDS = 30.0  # how long a rank waits for the others before it raises an error
_CHUNK = 15 << 20  # numbers exchanged at a time: 60 MB, on an accelerator as well
_SAVING = (
    "In the middle of an epoch every rank has to call it at the same step, because each knows only its "
    "own losses. Call it on every rank and write one result, or save after the epoch's last update, "
    "where one rank is enough, or pass gather=False to save without the other ranks' losses of this "
    "epoch. If ranks may arrive further apart, pass meeting_timeout=."
)
_meetings: dict[str, int] = {}  # how often the ranks of each process group have met


@dataclass(frozen=True)
class Communicator:
    """All collective calls of a process group, in one place.

    Results are in main memory, and large arrays go through the backend's device a chunk at a time.

    Args:
        world_size: the number of ranks; with 1, every call returns at once.
        process_group: the group to exchange in, or None for torch's default group.
        meeting_timeout: how many seconds :meth:`meet` waits for the other ranks.
    """

    world_size: int = 1
    process_group: dist.ProcessGroup | None = None
    meeting_timeout: float = MEETING_SECONDS

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be reached."""
        return self.world_size > 1 and has_process_group()

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Return every rank's row, stacked in the order of the ranks. Collective.

        Args:
            row: this rank's, a few numbers; all ranks' have the same length and dtype.

        Raises:
            RuntimeError: if there are several ranks and torch.distributed is not initialised.
        """
        if self.world_size == 1:
            return row.unsqueeze(0).cpu()
        return self._all_gather(row).cpu()

    def rounds(self, row: torch.Tensor) -> Iterator[torch.Tensor]:
        """Return all ranks' rows merged: their first numbers, then their second ones, and so on.

        This is the order of a plan, of which rank k of W has the positions k, k + W, …. It comes a
        chunk at a time, each in the memory of the one before, so that only what the caller keeps takes
        more. Collective, as each chunk is.

        Args:
            row: this rank's numbers, on any device; all ranks' have the same length and dtype.
        """
        if self.world_size == 1:
            yield row.cpu()
            return
        step = min(max(1, _CHUNK // self.world_size), len(row))
        device = self._device(row.device)
        gathered = row.new_empty((self.world_size, step), device=device)
        merged = row.new_empty((step, self.world_size), device=device)
        on_host = _on_host(merged)
        for start in range(0, len(row), step):
            part = row[start : start + step].to(device)
            count = len(part)
            rows = gathered.view(-1)[: count * self.world_size].view(-1, count)
            merged[:count] = self._all_gather(part, rows).T
            _write(merged[:count], on_host, 0)
            yield on_host[:count].view(-1)

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of all ranks' values, element by element; may overwrite them. Collective."""
        if self.world_size == 1:
            return values.cpu()
        merged = _on_host(values)
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK].to(self._device(values.device))
            dist.all_reduce(part, dist.ReduceOp.MAX, group=self.group())
            _write(part, merged, start)
        return merged

    def sum(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add numbers up over the ranks, in an order that only their number determines. Collective.

        Each rank adds up a part of the numbers and sends it to all, so a rank receives twice the
        numbers, however many ranks there are.
        """
        if self.world_size == 1:
            return values
        per_rank = -(-len(values) // self.world_size)
        padded = np.zeros((self.world_size, per_rank))
        padded.reshape(-1)[: len(values)] = values
        parts = self._all_to_all(torch.from_numpy(padded)).cpu().numpy()
        sums = np.add.reduce(parts, axis=0)
        total: npt.NDArray[np.float64] = self._all_gather(torch.from_numpy(sums)).cpu().numpy()
        return total.reshape(-1)[: len(values)]

    def broadcast(self, values: torch.Tensor, source: int) -> torch.Tensor:
        """Return one rank's values, which every rank has equally many of. Collective.

        Args:
            values: this rank's, which may be overwritten.
            source: the rank within the group whose values are returned.
        """
        received = _on_host(values)
        group = self.group()
        root = dist.get_global_rank(group, source)
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK].to(self._device(values.device))
            dist.broadcast(part, root, group=group)
            _write(part, received, start)
        return received

    def exchange_rows(
        self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """Send some rows to each rank and return those from each, in rank order. Collective.

        Args:
            rows: (n, bytes), uint8; those for rank 0 first, then those for rank 1, and so on.
            sent: how many rows each rank gets.
            received: how many rows come from each rank.
        """
        if self.world_size == 1:
            return rows
        device = self._device(rows.device)
        result = rows.new_empty((sum(received), *rows.shape[1:]), device=device)
        dist.all_to_all_single(
            result, rows.to(device), list(received), list(sent), group=self.group()
        )
        return result.cpu()

    def meet(self, call: str, remedy: str = _SAVING) -> None:
        """Wait for every rank.

        Uses the process group's store rather than a collective call, which would hang until the
        group's timeout, minutes or hours later, and leave the group unusable.

        Args:
            call: the public call that every rank has to make, for the error.
            remedy: what to do, for the error.

        Raises:
            RuntimeError: if a rank is missing after ``meeting_timeout`` seconds.
        """
        if not self.connected:
            return
        group = self.group()
        store = dist.distributed_c10d._get_process_group_store(group)
        name = dist.distributed_c10d._get_process_group_name(group)
        # Ranks only count meetings that all of them attended, so their counts agree.
        key = f"infobatch/meeting/{_meetings.get(name, 0)}"
        arrived = int(store.add(key, 1))
        deadline = time.monotonic() + self.meeting_timeout
        pause = 0.001
        while arrived < self.world_size:
            if time.monotonic() > deadline:
                remaining = int(store.add(key, -1))
                if remaining < self.world_size - 1:
                    raise RuntimeError(
                        f"{call} was called by {arrived} of {self.world_size} ranks; the others did "
                        f"not call it within {self.meeting_timeout:g} seconds. {remedy}"
                    )
                store.add(key, 1)  # the last rank arrived just now and relies on this one
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            arrived = int(store.add(key, 0))
        _meetings[name] = _meetings.get(name, 0) + 1

    def _all_gather(self, row: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Every rank's row, on the device of the exchange; in ``rows``, if given."""
        row = row.to(self._device(row.device)).contiguous()
        if rows is None:
            rows = row.new_empty((self.world_size, *row.shape))
        dist.all_gather(list(rows.unbind()), row, group=self.group())
        return rows

    def _all_to_all(self, rows: torch.Tensor) -> torch.Tensor:
        """The row that each rank has for this one, on the device of the exchange."""
        rows = rows.to(self._device(rows.device))
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows, group=self.group())
        return received

    def group(self) -> dist.ProcessGroup:
        """The process group; torch's default one if none was given.

        Raises:
            RuntimeError: if torch.distributed is not initialised.
        """
        if not has_process_group():
            raise RuntimeError(
                f"The end of the epoch has to exchange the losses of world_size={self.world_size} "
                "ranks, but torch.distributed is not initialised. Call init_process_group (torchrun "
                "sets its environment), or use world_size=1."
            )
        group = self.process_group or dist.group.WORLD
        assert group is not None
        return group

    def _device(self, known: torch.device) -> torch.device:
        """The device to exchange from: the same kind on every rank, wherever its data is.

        A rank without any losses has its buffer in main memory, while the others' are on their
        accelerators; if each rank chose by its own data, they would wait in different backends.

        Args:
            known: the device of the data, which is used if it is of that kind; otherwise it is the
                device to which the group is bound, or else the current one.
        """
        group = self.group()
        config = str(dist.get_backend_config(group))
        backends = [pair.split(":")[0] for pair in config.split(",")]
        if "cpu" in backends:
            return torch.device("cpu")
        kind = backends[0]
        bound: torch.device | None = getattr(group, "bound_device_id", None)
        for device in (known, bound):
            if device is not None and device.type == kind and device.index is not None:
                return device
        return torch.device(kind, torch.get_device_module(kind).current_device())


def has_process_group() -> bool:
    """Whether torch.distributed is available and initialised."""
    return dist.is_available() and dist.is_initialized()


def _on_host(values: torch.Tensor) -> torch.Tensor:
    """A tensor in main memory to write results into: the values themselves if they are there."""
    return values if values.device.type == "cpu" else torch.empty_like(values, device="cpu")


def _write(part: torch.Tensor, whole: torch.Tensor, start: int) -> None:
    """Copy an exchanged part to where it belongs, unless it was exchanged there."""
    target = whole[start : start + len(part)]
    if target.data_ptr() != part.data_ptr():
        target.copy_(part)
