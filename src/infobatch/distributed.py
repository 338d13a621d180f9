"""How the ranks of a job share an epoch, and what they exchange: a little, once, at its end."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from infobatch.dealing import accelerate_in_use
from infobatch.plan import ALL, Share


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share an epoch's samples.

    Normally every rank has all scores and draws the same plan, of which rank k of W visits
    ``order[k::W]``. With ``sharded`` a rank owns the samples k, k + W, k + 2W, … for good and
    draws from these alone. With ``global_order`` every rank is handed all of the order, because the
    loader deals the batches out to the ranks itself, and tells by index which ones it got.
    """

    rank: int = 0
    world_size: int = 1
    process_group: dist.ProcessGroup | None = None
    sharded: bool = False
    global_order: bool = False

    @property
    def walkers(self) -> int:
        """Among how many ranks the sampler divides the order."""
        return 1 if self.global_order else self.world_size

    def owned(self, num_samples: int) -> int:
        """How many of the samples this rank keeps the scores of."""
        if not self.sharded:
            return num_samples
        if num_samples < self.world_size:
            raise ValueError(
                f"sharded=True got {num_samples} samples for {self.world_size} ranks, expected at "
                "least one for each. Use sharded=False for data this small."
            )
        return len(range(self.rank, num_samples, self.world_size))

    @property
    def share(self) -> Share:
        """Which samples this rank keeps the scores of."""
        return Share(self.rank, self.world_size) if self.sharded else ALL

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Return every rank's row, stacked; all rows have the same length. Collective."""
        if self.world_size == 1:
            return row.unsqueeze(0)
        if not has_process_group():
            raise RuntimeError(
                f"The epoch's end has to exchange the losses of world_size={self.world_size} ranks, "
                "but torch.distributed is not initialised. Call init_process_group (torchrun sets "
                "its environment), or use world_size=1."
            )
        row = row.to(_exchange_device(self.process_group))
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        dist.all_gather(rows, row.contiguous(), group=self.process_group)
        return torch.stack(rows)

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of all ranks' values, place by place. Collective."""
        values = values.to(_exchange_device(self.process_group))
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.process_group)
        return values

    def sum(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add a few numbers up over the ranks. Collective."""
        total: npt.NDArray[np.float64] = self.gather(torch.from_numpy(values)).sum(0).cpu().numpy()
        return total


def has_process_group() -> bool:
    """Whether torch.distributed is there and initialised."""
    return dist.is_available() and dist.is_initialized()


def resolve_ranks(
    rank: int | None,
    world_size: int | None,
    process_group: dist.ProcessGroup | None,
    *,
    sharded: bool = False,
    global_order: bool | None = None,
) -> Ranks:
    """Find this process's place: by arguments, by process group, or alone."""
    if rank is None or world_size is None:
        if not has_process_group():
            return Ranks(sharded=sharded)
        rank, world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if global_order is None:  # whoever names a rank means that rank's share
            global_order = not sharded and accelerate_in_use()
    return Ranks(rank, world_size, process_group, sharded, bool(global_order) and world_size > 1)


def check_ranks(rank: Any, world_size: Any) -> tuple[int | None, int | None]:
    """Return a place among ranks as plain numbers, or refuse one that does not exist."""
    if rank is None and world_size is None:
        return None, None
    try:
        rank, world_size = operator.index(rank), operator.index(world_size)
        exists = 0 <= rank < world_size
    except TypeError:
        exists = False
    if not exists:
        raise ValueError(
            f"rank={rank!r}, world_size={world_size!r} is not a place among ranks. Expected both, "
            "with 0 <= rank < world_size, or neither: then torch.distributed is asked."
        )
    return rank, world_size


def _exchange_device(group: dist.ProcessGroup | None) -> torch.device:
    """The device to exchange from: the same kind on every rank, wherever a rank's data lies.

    A rank without a single loss has its buffer in main memory while the others' are on their
    accelerators; if each chose by its own data, they would wait in different backends.
    """
    backends = [pair.split(":")[0] for pair in str(dist.get_backend_config(group)).split(",")]
    return torch.device("cpu" if "cpu" in backends else backends[0])


class Checkpointable:
    """A data set or pruner as ``torch.distributed.checkpoint`` wants it.

    That reads into tensors of the sizes that are there already, so here the losses of the running
    epoch always have the full length: ``dcp.save({"data": Checkpointable(train_data), …})``.
    """

    def __init__(self, train_data: Any) -> None:
        self._train_data = train_data

    def state_dict(self) -> dict[str, Any]:
        """The state, with tensors whose sizes do not depend on the epoch's progress."""
        state = self._train_data.state_dict()
        losses = state["losses"]
        padded = torch.full((len(state["scores"]),), float("nan"))
        padded[: len(losses)] = losses
        return {**state, "losses": padded, "num_losses": len(losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        state = dict(state)
        state["losses"] = state["losses"][: state.pop("num_losses")]
        self._train_data.load_state_dict(state)
