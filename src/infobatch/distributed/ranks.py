"""How the ranks of a job divide an epoch among themselves."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch.distributed as dist

from infobatch.distributed.communicator import (
    MEETING_SECONDS,
    Communicator,
    has_process_group,
)
from infobatch.plan import ALL, Shard


@dataclass(frozen=True)
class Ranks:
    """Which rank this process is, and how the samples of an epoch are divided.

    Normally every rank has all scores and draws the same plan, of which rank k of W visits
    ``order[k::W]``. With ``sharded`` a rank permanently owns the samples k, k + W, k + 2W, … and
    draws only from these. With ``global_order`` every rank's sampler issues the whole order,
    because the loader shards the batches itself, and the index in the batch shows which ones a rank
    received.

    Ranks that share a batch, as under tensor, pipeline or context parallelism, are one rank here: their
    ``rank`` and ``world_size`` are those of the group over which the data is parallel, and ``model``
    is what they agree with.

    Attributes:
        rank: this process, from 0.
        world_size: the number of ranks.
        sharded: whether each rank keeps only the scores of its own samples.
        global_order: whether every rank's sampler issues the whole order.
        communicator: what the ranks exchange their losses with.
        model: what the ranks that share this one's batches agree with, on whose losses count.

    >>> Ranks(rank=1, world_size=4, sharded=True).owned(10)  # samples 1, 5 and 9
    3
    """

    rank: int = 0
    world_size: int = 1
    sharded: bool = False
    global_order: bool = False
    communicator: Communicator = field(default_factory=Communicator)
    model: Communicator = field(default_factory=Communicator)

    @property
    def share_batches(self) -> bool:
        """Whether other ranks train on the same batches as this one."""
        return self.model.world_size > 1

    @property
    def connected(self) -> bool:
        """Whether there are other ranks and they can be reached."""
        return self.communicator.connected or self.model.connected

    def meet(self, call: str) -> None:
        """Wait for every rank.

        Args:
            call: the call that all of them have to make, for the error message.

        Raises:
            RuntimeError: if one of them does not come in time.
        """
        self.model.meet(call)
        self.communicator.meet(call)

    @property
    def walkers(self) -> int:
        """The number of ranks among which the sampler divides the order."""
        return 1 if self.global_order else self.world_size

    def owned(self, num_samples: int) -> int:
        """Return the number of samples whose scores this rank keeps.

        Args:
            num_samples: the number of samples in the data.

        Returns:
            All of them, or with ``sharded=True`` those of this rank's shard.

        Raises:
            ValueError: if the ranks are sharded and there are fewer samples than ranks.
        """
        if not self.sharded:
            return num_samples
        if num_samples < self.world_size:
            raise ValueError(
                f"sharded=True got {num_samples} samples for {self.world_size} ranks, expected at "
                "least one for each. Use sharded=False for data this small."
            )
        return len(range(self.rank, num_samples, self.world_size))

    @property
    def shard(self) -> Shard:
        """The samples whose scores this rank keeps."""
        return Shard(self.rank, self.world_size) if self.sharded else ALL


@dataclass(frozen=True)
class Place:
    """The user's arguments about ranks; the rest comes from torch.distributed, when it is needed.

    The lookup is deferred because loaders are often built before the process group.
    ``global_order`` is None if the loaders decide; ``meeting_timeout`` is in seconds.

    Raises:
        ValueError: if only one of ``rank`` and ``world_size`` is given, they name no rank, both
            ``sharded`` and ``global_order`` are set, or the timeout is not a positive number.
    """

    rank: int | None = None
    world_size: int | None = None
    process_group: dist.ProcessGroup | None = None
    model_group: dist.ProcessGroup | None = None
    sharded: bool = False
    global_order: bool | None = None
    meeting_timeout: float = MEETING_SECONDS

    def __post_init__(self) -> None:
        if self.sharded and self.global_order:
            raise ValueError(
                "Pruner(sharded=True, global_order=True) asks for two things that exclude each other: "
                "ranks that know only their own samples, and samplers that issue all samples. Expected at "
                "most one; loaders that shard the batches themselves need global_order."
            )
        timeout = self.meeting_timeout
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
            raise ValueError(
                f"meeting_timeout got {timeout!r}, expected a number of seconds > 0: how long a rank waits "
                "for the others in a call that all of them have to make."
            )
        if self.rank is None and self.world_size is None:
            return
        try:
            exists = 0 <= operator.index(self.rank) < operator.index(self.world_size)  # type: ignore[arg-type]
        except TypeError:
            exists = False
        if not exists:
            raise ValueError(
                f"rank={self.rank!r}, world_size={self.world_size!r} is not a rank of a job. Expected "
                "both, with 0 <= rank < world_size, or neither, to use torch.distributed's."
            )

    @property
    def has_no_group(self) -> bool:
        """Whether it names no process group, which would belong to this process."""
        return self.process_group is None and self.model_group is None

    def find(self, *, loaders_shard: bool) -> Ranks:
        """Find this process's rank: by arguments, by process group, or as the only rank.

        Raises:
            ValueError: if ranks share their batches and the group for the data is missing.
        """
        rank, world_size, global_order = self.rank, self.world_size, self.global_order
        model = self._model()
        if rank is None or world_size is None:
            if not has_process_group():
                return Ranks(sharded=self.sharded)
            rank, world_size = self._data_rank(model)
            if global_order is None:  # an explicit rank means that rank's share of the order
                global_order = loaders_shard and not self.sharded
        return Ranks(
            int(rank),
            int(world_size),
            self.sharded,
            bool(global_order) and world_size > 1,
            Communicator(int(world_size), self.process_group, self.meeting_timeout),
            model,
        )

    def _model(self) -> Communicator:
        """The ranks that share this one's batches; alone without a group."""
        if self.model_group is None:
            return Communicator()
        size = dist.get_world_size(self.model_group)
        return Communicator(size, self.model_group, self.meeting_timeout)

    def _data_rank(self, model: Communicator) -> tuple[int, int]:
        """This process's place among the ranks that divide the data, and their number."""
        group = self.process_group
        if self.model_group is None or group is not None:
            return dist.get_rank(group), dist.get_world_size(group)
        if model.world_size < dist.get_world_size():
            raise ValueError(
                f"model_group got a group of {model.world_size} of {dist.get_world_size()} ranks, and "
                "process_group is missing. Expected the group over which the data is parallel as well, "
                'for instance process_group=mesh["data"].get_group().'
            )
        return 0, 1  # all ranks share every batch
