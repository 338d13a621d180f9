"""The state in the form that torch.distributed.checkpoint needs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from infobatch.distributed.ranks import Ranks
from infobatch.per_sample import GRADIENT


class Checkpointable:
    """A data set or pruner for ``torch.distributed.checkpoint``.

    ``dcp.load`` reads into tensors whose names and sizes must match those in the checkpoint, so here
    the losses of the running epoch always have the full length. Pass one to both calls:
    ``dcp.save({"data": Checkpointable(train_data), …})``, ``dcp.load({"data": Checkpointable(train_data),
    …})``.

    With ``sharded=True`` the tensors are DTensors over all samples, of which each rank writes and reads a
    part. So a checkpoint taken between epochs loads with any number of ranks, sharded or not; one from
    the middle of an epoch needs the number of ranks that wrote it.

    Args:
        train_data: an ``InfoBatch`` or a ``Pruner``.
    """

    def __init__(self, train_data: Any) -> None:
        self._train_data = train_data

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with names and sizes that do not depend on the progress of the training.

        With ``sharded=True`` it is collective at any time.

        Returns:
            The state, for ``torch.distributed.checkpoint``.
        """
        state = self._train_data.state_dict()
        count, rows = len(state["losses"]), len(state["columns"]["score"])
        pruner = self._train_data
        extras = {name: state["extras"].get(name, torch.empty(0)) for name in pruner._channels}
        tensors = {
            "columns": _with_sizes(state["columns"], pruner),
            "losses": _padded(state["losses"], rows),
            "extras": {name: _padded(values, rows) for name, values in extras.items()},
            "shadows": {
                name: _with_sizes(shadow["columns"], pruner)
                for name, shadow in state["shadows"].items()
            },
        }
        of_rank = torch.tensor([count, state.pop("plan_check")])
        shards = of_rank.unsqueeze(0)
        ranks = self._ranks
        if ranks.sharded and ranks.world_size > 1:
            tensors = Blocks(ranks, state["num_samples"]).scattered(tensors)
            shards = ranks.communicator.gather(of_rank)
        return {
            **state,
            **tensors,
            "shard": [0, 1],  # the tensors cover all samples
            # Of each: how many losses, and a check of its plan.
            "shards": json.dumps(shards.tolist()),
            # As strings, not a key for each epoch.
            "history": json.dumps(state["history"]),
            "shadow_histories": json.dumps(
                {name: shadow["history"] for name, shadow in state["shadows"].items()}
            ),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from such a state.

        Args:
            state: what :meth:`state_dict` returned, after ``dcp.load`` has filled it.

        Raises:
            ValueError: if the state belongs to other data, as ``train_data.load_state_dict`` does, or
                to the middle of an epoch of another number of ranks with sharded scores.
        """
        state = dict(state)
        shards, ranks = json.loads(state.pop("shards")), self._ranks
        count, plan_check = _own_shard(shards, ranks)
        tensors = {name: state.get(name, {}) for name in _TENSORS}  # DCP omits empty ones
        histories = json.loads(state.pop("shadow_histories")).items()
        if ranks.sharded and ranks.world_size > 1:
            tensors = Blocks(ranks, state["num_samples"]).gathered(tensors)
        extras = {name: values[:count] for name, values in tensors["extras"].items() if count}
        self._train_data.load_state_dict(
            {
                **state,
                "columns": _without_unknown(tensors["columns"]),
                "losses": tensors["losses"][:count],
                "extras": extras,
                "shard": list(ranks.shard),
                "plan_check": plan_check,
                "history": json.loads(state["history"]),
                "shadows": {
                    name: {
                        "columns": _without_unknown(tensors["shadows"][name]),
                        "history": history,
                    }
                    for name, history in histories
                },
            }
        )

    @property
    def _ranks(self) -> Ranks:
        ranks: Ranks = self._train_data._ranks()
        return ranks


class Blocks:
    """Rows of samples k, k + W, k + 2W, … on rank k, and in blocks of consecutive samples.

    torch.distributed.checkpoint stores blocks. Rows for one block are consecutive on every rank, so each
    way is one exchange.

    Args:
        ranks: the ranks, with sharded scores.
        num_samples: the number of samples on all of them.
    """

    def __init__(self, ranks: Ranks, num_samples: int) -> None:
        world_size = ranks.world_size
        size = -(-num_samples // world_size)
        self._starts = [min(rank * size, num_samples) for rank in range(world_size + 1)]
        self._ranks, self._num_samples = ranks, num_samples
        self._sent = [len(self._rows(ranks.rank, block)) for block in range(world_size)]
        self._received = [len(self._rows(rank, ranks.rank)) for rank in range(world_size)]

    def _rows(self, rank: int, block: int) -> range:
        """The samples of a rank that are in a block."""
        start, stop = self._starts[block : block + 2]
        step = self._ranks.world_size
        return range(start + (rank - start) % step, stop, step)

    def scattered(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of this rank's rows as DTensors over all samples. Collective."""
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - slow to import
        from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415

        communicator = self._ranks.communicator
        mesh = DeviceMesh.from_group(communicator.group(), "cpu")

        def scatter(rows: torch.Tensor) -> torch.Tensor:
            parts = communicator.exchange_rows(_as_bytes(rows), self._sent, self._received)
            start, stop = self._starts[self._ranks.rank :][:2]
            block = rows.new_empty(stop - start, *rows.shape[1:])
            target = _as_bytes(block)
            for rank, part in enumerate(torch.split(parts, self._received)):
                samples = self._rows(rank, self._ranks.rank)
                target[samples.start - start :: samples.step][: len(part)] = part
            shape = torch.Size((self._num_samples, *rows.shape[1:]))
            stride = torch.empty(shape, device="meta").stride()
            return DTensor.from_local(
                block, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
            )

        return _mapped(scatter, tensors)

    def gathered(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The other way. Collective."""

        def gather(whole: Any) -> torch.Tensor:
            block = whole.to_local()
            start = self._starts[self._ranks.rank]
            source = _as_bytes(block)
            parts = []
            for rank, count in enumerate(self._received):
                samples = self._rows(rank, self._ranks.rank)
                parts.append(source[samples.start - start :: samples.step][:count])
            communicator = self._ranks.communicator
            rows = communicator.exchange_rows(torch.cat(parts), self._received, self._sent)
            return rows.view(block.dtype).view(-1, *block.shape[1:])

        return _mapped(gather, tensors)


_TENSORS = ("columns", "losses", "extras", "shadows")


def _own_shard(shards: list[list[int]], ranks: Ranks) -> list[int]:
    """How many losses of the running epoch are this rank's, and the check of its plan."""
    number = ranks.world_size if ranks.sharded else 1
    if len(shards) == number:
        return shards[ranks.shard.first]
    if any(count for count, _ in shards):
        raise ValueError(
            f"dcp.load() got a state from the middle of an epoch, with its losses in {len(shards)} shards, "
            f"expected {number}. With sharded=True an epoch's plan belongs to its number of ranks: load it "
            "with the ranks that saved it, or a state that was saved between epochs."
        )
    return [0, 0]


def _mapped(function: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _mapped(function, value) if isinstance(value, Mapping) else function(value)
        for name, value in tensors.items()
    }


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The same rows in bytes, which every backend can exchange."""
    width = math.prod(rows.shape[1:])
    return rows.contiguous().view(len(rows), width).view(torch.uint8)


def _with_sizes(columns: Mapping[str, torch.Tensor], pruner: Any) -> dict[str, torch.Tensor]:
    """The columns with that of the sizes of gradients, which is there only once sizes are reported."""
    if GRADIENT not in pruner._channels:
        return dict(columns)
    return {GRADIENT: torch.full_like(columns["score"], math.nan), **columns}


def _without_unknown(columns: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The columns without that of the sizes of gradients, if none was reported."""
    known = dict(columns)
    if GRADIENT in known and bool(known[GRADIENT].isnan().all()):
        del known[GRADIENT]
    return known


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    padded = torch.full((size,), float("nan"))
    padded[: len(values)] = values
    return padded
