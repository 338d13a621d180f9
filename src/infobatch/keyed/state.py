"""The checkpoint of a keyed pruner: every field is listed once, in ``State``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch

from infobatch.keyed.chance import Hashes
from infobatch.keyed.record import Visits
from infobatch.memory.memory import SCORE
from infobatch.memory.state import (
    Form,
    damaged,
    forms_of,
    read_arrays,
    read_history,
    write_arrays,
    write_history,
)
from infobatch.memory.tracks import Columns
from infobatch.savings import EpochPasses

_FORMAT = "infobatch keyed 1"


def _write_hashes(hashes: Hashes) -> torch.Tensor:
    return torch.from_numpy(hashes.view(np.int64).copy())


def _read_hashes(tensor: torch.Tensor) -> Hashes:
    return tensor.cpu().numpy().astype(np.int64).view(np.uint64)


def _write_columns(columns: Columns) -> dict[str, torch.Tensor]:
    return write_arrays({name: column.copy() for name, column in columns.items()})


def _write_visits(visits: Visits) -> dict[str, Any]:
    return {"hashes": _write_hashes(visits.hashes), "values": write_arrays(visits.values)}


def _read_visits(stored: Mapping[str, Any]) -> Visits:
    return Visits(_read_hashes(stored["hashes"]), read_arrays(stored["values"]))


@dataclass(frozen=True)
class State:
    """Everything needed to continue bit for bit.

    ``visits`` are those of the running epoch, by all ranks. ``shards`` is the number of ranks that
    divided the keys among themselves, 1 if every rank has all. ``check`` verifies that the decisions
    are the same when they are made again.
    """

    seed: Annotated[int, Form(int)]
    epoch: Annotated[int, Form(int)]
    hashes: Annotated[Hashes, Form(torch.Tensor, _write_hashes, _read_hashes)]
    columns: Annotated[Columns, Form(Mapping, _write_columns, read_arrays)]
    visits: Annotated[Visits, Form(Mapping, _write_visits, _read_visits)]
    history: Annotated[tuple[EpochPasses, ...], Form(list, write_history, read_history)]
    repeated: Annotated[int, Form(int)]
    shards: Annotated[int, Form(int)]
    check: Annotated[int, Form(int)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain tensors and numbers that ``torch.load(weights_only=True)`` can read."""
        stored = {name: form.write(getattr(self, name)) for name, form in _FORMS.items()}
        return {"format": _FORMAT} | stored

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
        for name, form in _FORMS.items():
            if not isinstance(state.get(name), form.kind):
                raise damaged(f"{name!r} is {type(state.get(name)).__name__}")
        if SCORE not in state["columns"]:
            raise damaged("it has no scores")
        visits = state["visits"]
        if not isinstance(visits.get("hashes"), torch.Tensor) or "values" not in visits:
            raise damaged("'visits' is not what state_dict() writes")
        _check_lengths(state["hashes"], state["columns"])
        _check_lengths(visits["hashes"], visits["values"])
        return cls(**{name: form.read(state[name]) for name, form in _FORMS.items()})

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


_FORMS = forms_of(State)


def _check_lengths(hashes: torch.Tensor, columns: Mapping[str, Any]) -> None:
    for name, column in columns.items():
        if not isinstance(column, torch.Tensor) or len(column) != len(hashes):
            raise damaged(
                f"column {name!r} does not have one row for each of the {len(hashes)} keys"
            )
