"""The checkpoint of a keyed pruner: every field is listed once, in ``State`` and ``_KINDS``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infobatch.keyed.chance import Hashes
from infobatch.keyed.record import Visits
from infobatch.memory.memory import SCORE
from infobatch.memory.state import read_arrays, read_history, write_arrays, write_history
from infobatch.savings import EpochPasses

_FORMAT = "infobatch keyed 1"
_KINDS: dict[str, type] = {
    "seed": int,
    "epoch": int,
    "hashes": torch.Tensor,
    "columns": Mapping,
    "visited": torch.Tensor,
    "values": Mapping,
    "history": list,
    "repeated": int,
    "shards": int,
    "check": int,
}


@dataclass(frozen=True)
class State:
    """Everything needed to continue bit for bit.

    ``visits`` are those of the running epoch, by all ranks. ``shards`` is the number of ranks that
    divided the keys among themselves, 1 if every rank has all. ``check`` verifies that the decisions
    are the same when they are made again.
    """

    seed: int
    epoch: int
    hashes: Hashes
    columns: Mapping[str, npt.NDArray[Any]]
    visits: Visits
    history: tuple[EpochPasses, ...]
    repeated: int
    shards: int
    check: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain tensors and numbers that ``torch.load(weights_only=True)`` can read."""
        return {
            "format": _FORMAT,
            "seed": self.seed,
            "epoch": self.epoch,
            "hashes": torch.from_numpy(self.hashes.view(np.int64).copy()),
            "columns": write_arrays({name: c.copy() for name, c in self.columns.items()}),
            "visited": torch.from_numpy(self.visits.hashes.view(np.int64)),
            "values": write_arrays(self.visits.values),
            "history": write_history(self.history),
            "repeated": self.repeated,
            "shards": self.shards,
            "check": self.check,
        }

    @classmethod
    def from_dict(cls, state: object) -> State:
        """Read a state.

        Raises:
            TypeError: if it is not a dictionary.
            ValueError: if it is damaged, or not that of a KeyedPruner of this version.
        """
        if not isinstance(state, Mapping):
            raise TypeError(
                f"load_state_dict() got {type(state).__name__}, expected the dictionary that "
                "state_dict() returned, or a list of those of all ranks."
            )
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"load_state_dict() got a state of format {state.get('format')!r}, expected "
                f"{_FORMAT!r}: a state_dict() of a KeyedPruner."
            )
        for name, kind in _KINDS.items():
            if not isinstance(state.get(name), kind):
                raise _damaged(f"{name!r} is {type(state.get(name)).__name__}")
        if SCORE not in state["columns"]:
            raise _damaged("it has no scores")
        _check_lengths(state, "hashes", "columns")
        _check_lengths(state, "visited", "values")
        return cls(
            seed=state["seed"],
            epoch=state["epoch"],
            hashes=_hashes(state["hashes"]),
            columns=read_arrays(state["columns"]),
            visits=Visits(_hashes(state["visited"]), read_arrays(state["values"])),
            history=read_history(state["history"]),
            repeated=state["repeated"],
            shards=state["shards"],
            check=state["check"],
        )

    @classmethod
    def joined(cls, states: Sequence[object]) -> State:
        """One state from those of all ranks.

        Raises:
            ValueError: if states are missing, or are not of the same step.
        """
        parts = [cls.from_dict(state) for state in states]
        if not parts or any(len(parts) != part.shards for part in parts):
            shards = parts[0].shards if parts else "?"
            raise ValueError(
                f"load_state_dict() got {len(parts)} state(s), expected {shards}: with sharded=True each "
                "rank has saved the scores of its own keys. Pass a list of the states of all ranks; the "
                "number of ranks may be another one now."
            )
        if len({(part.epoch, part.seed, len(part.visits.hashes)) for part in parts}) > 1:
            raise ValueError(
                "load_state_dict() got states of different steps, expected those that the ranks saved "
                "at the same time."
            )
        columns = {
            name: np.concatenate([part.columns[name] for part in parts])
            for name in parts[0].columns
        }
        hashes = np.concatenate([part.hashes for part in parts])
        return replace(parts[0], hashes=hashes, columns=columns, shards=1)


def _hashes(tensor: torch.Tensor) -> Hashes:
    return tensor.cpu().numpy().astype(np.int64).view(np.uint64)


def _check_lengths(state: Mapping[str, Any], hashes: str, columns: str) -> None:
    length = len(state[hashes])
    for name, column in state[columns].items():
        if not isinstance(column, torch.Tensor) or len(column) != length:
            raise _damaged(f"column {name!r} does not have one row for each of the {length} keys")


def _damaged(damage: str) -> ValueError:
    return ValueError(
        f"load_state_dict() got a damaged state: {damage}. Use an earlier checkpoint."
    )
