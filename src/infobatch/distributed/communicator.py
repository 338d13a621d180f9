"""Communication between ranks: at the end of each epoch, and for a mid-epoch checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

MEETING_SECONDS = 30.0  # how long a rank waits for the others before it raises an error
_SAVING = (
    "In the middle of an epoch every rank has to call it at the same step, because each knows only its "
    "own losses. Call it on every rank and write one result, or save after the epoch's last update, "
    "where one rank is enough, or pass gather=False to save without the other ranks' losses of this "
    "epoch."
)
_meetings: dict[str, int] = {}  # how often the ranks of each process group have met


@dataclass(frozen=True)
class Communicator:
    """All collective calls of a process group, in one place.

    Args:
        world_size: the number of ranks; with 1, every call returns at once.
        process_group: the group to exchange in, or None for torch's default group.
    """

    world_size: int = 1
    process_group: dist.ProcessGroup | None = None

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be reached."""
        return self.world_size > 1 and has_process_group()

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Return every rank's row, stacked in the order of the ranks. Collective.

        Args:
            row: this rank's; all ranks' have the same length and dtype.

        Raises:
            RuntimeError: if there are several ranks and torch.distributed is not initialised.
        """
        if self.world_size == 1:
            return row.unsqueeze(0)
        if not has_process_group():
            raise RuntimeError(
                f"The end of the epoch has to exchange the losses of world_size={self.world_size} "
                "ranks, but torch.distributed is not initialised. Call init_process_group (torchrun "
                "sets its environment), or use world_size=1."
            )
        row = row.to(self._device())
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        dist.all_gather(rows, row.contiguous(), group=self.process_group)
        return torch.stack(rows)

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of all ranks' values, element by element. Collective."""
        values = values.to(self._device())
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.process_group)
        return values

    def sum(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add a few numbers up over the ranks. Collective."""
        total: npt.NDArray[np.float64] = self.gather(torch.from_numpy(values)).sum(0).cpu().numpy()
        return total

    def meet(self, call: str, remedy: str = _SAVING) -> None:
        """Wait for every rank.

        Uses the process group's store rather than a collective call, which would hang until the
        group's timeout, minutes or hours later, and leave the group unusable.

        Args:
            call: the public call that every rank has to make, for the error.
            remedy: what to do, for the error.

        Raises:
            RuntimeError: if a rank is missing after ``MEETING_SECONDS``.
        """
        if not self.connected:
            return
        group = self.process_group or dist.group.WORLD
        assert group is not None
        store = dist.distributed_c10d._get_process_group_store(group)
        name = dist.distributed_c10d._get_process_group_name(group)
        # Ranks only count meetings that all of them attended, so their counts agree.
        key = f"infobatch/meeting/{_meetings.get(name, 0)}"
        arrived = int(store.add(key, 1))
        deadline = time.monotonic() + MEETING_SECONDS
        pause = 0.001
        while arrived < self.world_size:
            if time.monotonic() > deadline:
                others = int(store.add(key, -1))
                if others < self.world_size - 1:
                    raise RuntimeError(
                        f"{call} was called by {arrived} of {self.world_size} ranks; the others did "
                        f"not call it within {MEETING_SECONDS:.0f} seconds. {remedy}"
                    )
                store.add(key, 1)  # the last rank arrived just now and relies on this one
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            arrived = int(store.add(key, 0))
        _meetings[name] = _meetings.get(name, 0) + 1

    def _device(self) -> torch.device:
        """The device to exchange from: the same kind on every rank, wherever its data is.

        A rank without any losses has its buffer in main memory, while the others' are on their
        accelerators; if each rank chose by its own data, they would wait in different backends.
        """
        config = str(dist.get_backend_config(self.process_group))
        backends = [pair.split(":")[0] for pair in config.split(",")]
        return torch.device("cpu" if "cpu" in backends else backends[0])


def has_process_group() -> bool:
    """Whether torch.distributed is available and initialised."""
    return dist.is_available() and dist.is_initialized()
