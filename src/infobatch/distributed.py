"""How the ranks of a job share an epoch and what they exchange: losses, once, at its end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share an epoch's samples."""

    rank: int = 0
    world_size: int = 1
    process_group: dist.ProcessGroup | None = None

    def gather(self, losses: torch.Tensor) -> torch.Tensor:
        """Return every rank's losses, one row a rank; each rank has equally many."""
        if self.world_size == 1:
            return losses.unsqueeze(0)
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                f"The epoch's end has to exchange the losses of world_size={self.world_size} ranks, "
                "but torch.distributed is not initialised. Call init_process_group (torchrun sets "
                "its environment), or use world_size=1."
            )
        rows = [torch.empty_like(losses) for _ in range(self.world_size)]
        dist.all_gather(rows, losses, group=self.process_group)
        return torch.stack(rows)


def resolve_ranks(
    rank: int | None, world_size: int | None, process_group: dist.ProcessGroup | None
) -> Ranks:
    """Find this process's place: by arguments, by process group, or alone."""
    if rank is not None and world_size is not None:
        return Ranks(rank, world_size, process_group)
    if dist.is_available() and dist.is_initialized():
        return Ranks(
            dist.get_rank(process_group), dist.get_world_size(process_group), process_group
        )
    return Ranks()


def check_ranks(rank: int | None, world_size: int | None) -> None:
    """Refuse a place that does not exist."""
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ValueError(
            f"rank={rank!r}, world_size={world_size!r} is not a place among ranks. Expected both, "
            "with 0 <= rank < world_size, or neither: then torch.distributed is asked."
        )
