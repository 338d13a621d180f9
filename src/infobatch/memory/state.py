"""The complete checkpoint format: every field is listed once, in ``State``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed.ranks import Ranks
from infobatch.memory.memory import SCORE
from infobatch.memory.tracks import Columns
from infobatch.plan import FloatArray, Shard
from infobatch.savings import EpochPasses

VERSION = 2


class ShadowState(NamedTuple):
    """What is remembered for a rule that is only followed, and its record of the epochs."""

    columns: Columns
    history: tuple[EpochPasses, ...]


class Form(NamedTuple):
    """How a field is stored: its type there, and both ways."""

    kind: type
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value


def forms_of(state: type) -> dict[str, Form]:
    """How each field of a state is stored, by its name, from the fields' annotations."""
    hints = get_type_hints(state, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def _tensor(column: npt.NDArray[Any]) -> torch.Tensor:
    # torch.save and torch.distributed support uint16 only in part.
    return torch.from_numpy(column.astype(np.int32) if column.dtype == np.uint16 else column)


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.cpu().numpy().copy()
    return array


def write_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Columns as tensors that every loader of checkpoints supports."""
    return {name: _tensor(array) for name, array in arrays.items()}


def read_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Copies of such tensors as columns."""
    return {name: _array(tensor) for name, tensor in tensors.items()}


def write_history(history: tuple[EpochPasses, ...]) -> list[dict[str, Any]]:
    """Each epoch's numbers by name, without those that are None."""
    rows = [{**asdict(passes), "thresholds": list(passes.thresholds)} for passes in history]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def read_history(rows: list[dict[str, Any]]) -> tuple[EpochPasses, ...]:
    """The epochs' numbers from such rows."""
    return tuple(EpochPasses(**{**row, "thresholds": tuple(row["thresholds"])}) for row in rows)


def _written(shadows: Mapping[str, ShadowState]) -> dict[str, dict[str, Any]]:
    return {
        name: {"columns": write_arrays(shadow.columns), "history": write_history(shadow.history)}
        for name, shadow in shadows.items()
    }


def _read(shadows: Mapping[str, Mapping[str, Any]]) -> dict[str, ShadowState]:
    return {
        name: ShadowState(read_arrays(shadow["columns"]), read_history(shadow["history"]))
        for name, shadow in shadows.items()
    }


@dataclass(frozen=True)
class State:
    """Everything needed to continue bit for bit.

    ``losses`` are those of the running epoch, in the order of its plan or, with ``losses_by``
    "index", by sample index. ``plan_check`` verifies that the plan is the same when it is drawn
    again. A field's annotation says how it is stored.
    """

    num_samples: Annotated[int, Form(int)]
    shard: Annotated[Shard, Form(list, list, Shard._make)]  # of the rows' samples
    seed: Annotated[int, Form(int)]
    epoch: Annotated[int, Form(int)]
    finished: Annotated[int, Form(int)]  # the last epoch that was completed, -1 before the first
    columns: Annotated[Columns, Form(Mapping, write_arrays, read_arrays)]
    losses: Annotated[FloatArray, Form(torch.Tensor, _tensor, _array)]
    extras: Annotated[Columns, Form(Mapping, write_arrays, read_arrays)]  # reported with losses
    losses_by: Annotated[str, Form(str)]  # "position" or "index"
    plan_check: Annotated[int, Form(int)]
    batch: Annotated[int, Form(int)]  # the largest number of samples in an update so far
    history: Annotated[tuple[EpochPasses, ...], Form(list, write_history, read_history)]
    shadows: Annotated[Mapping[str, ShadowState], Form(Mapping, _written, _read)]  # by rule

    def to_dict(self) -> dict[str, Any]:
        """Return plain tensors and numbers that ``torch.load(weights_only=True)`` can read."""
        stored = {name: form.write(getattr(self, name)) for name, form in _FORMS.items()}
        return {"version": VERSION} | stored

    @classmethod
    def from_dict(cls, state: object, num_samples: int, ranks: Ranks) -> State:
        """Read a state.

        Raises:
            TypeError: if it is not a dictionary.
            ValueError: if it is damaged, of another version, or belongs to other data.
        """
        if not isinstance(state, Mapping):
            raise TypeError(
                f"load_state_dict() got {type(state).__name__}, expected the dictionary that "
                "state_dict() returned."
            )
        if state.get("version") != VERSION:
            raise ValueError(
                f"load_state_dict() got a state of version {state.get('version')!r}, expected "
                f"{VERSION}. Load it with the version of infobatch that saved it."
            )
        _check_types(state)
        _check_fit(state, num_samples, ranks)
        return cls(**{name: form.read(state[name]) for name, form in _FORMS.items()})


_FORMS = forms_of(State)
_PASSES = {field.name for field in fields(EpochPasses)}
_OPTIONAL = {"planned_cost", "realised_noise"}


def _check_types(state: Mapping[str, Any]) -> None:
    for name, form in _FORMS.items():
        if not isinstance(state.get(name), form.kind):
            raise damaged(f"{name!r} is {_kind_of(state.get(name))}, expected {form.kind.__name__}")
    _check_columns(state["columns"])
    for name, shadow in state["shadows"].items():
        if not isinstance(shadow, Mapping) or set(shadow) != {"columns", "history"}:
            raise damaged(f"the shadow {name!r} is not what state_dict() writes")
        _check_columns(shadow["columns"])
    rows = (row for part in (state, *state["shadows"].values()) for row in part["history"])
    written = all(
        isinstance(row, Mapping) and _PASSES - _OPTIONAL <= set(row) <= _PASSES for row in rows
    )
    if state["losses_by"] not in ("index", "position") or not written or state["epoch"] < 0:
        raise damaged("'losses_by', 'history' or 'epoch' is not what state_dict() writes")


def _check_columns(columns: Mapping[str, Any]) -> None:
    for name in {SCORE: None, **columns}:
        column = columns.get(name)
        if not isinstance(column, torch.Tensor):
            subject = "its scores are" if name == SCORE else f"column {name!r} is"
            raise damaged(f"{subject} {_kind_of(column)}, expected Tensor")


def _check_fit(state: Mapping[str, Any], num_samples: int, ranks: Ranks) -> None:
    if state["num_samples"] != num_samples:
        raise ValueError(
            f"load_state_dict() got the state of a data set with {state['num_samples']} samples, "
            f"expected {num_samples}. Scores belong to samples: load it for the data it came from."
        )
    if state["shard"] != list(ranks.shard):
        raise ValueError(
            f"load_state_dict() got the scores of the samples {_samples_of(state['shard'])}, but this "
            f"rank keeps those of {_samples_of(list(ranks.shard))}. A sharded state belongs to its "
            "rank and number of ranks: load one per rank, with the same number of ranks."
        )
    owned = ranks.owned(num_samples)
    parts = (state, *state["shadows"].values())
    for name, column in (item for part in parts for item in part["columns"].items()):
        wrong_type = name == SCORE and column.dtype != torch.float32
        if column.shape[:1] != (owned,) or wrong_type:
            raise damaged(
                f"column {name!r} is {column.dtype} of shape {tuple(column.shape)}, expected one row "
                f"per sample ({owned})"
            )
    least = owned if state["losses_by"] == "index" else 0
    for name, values in {"losses": state["losses"], **state["extras"]}.items():
        if values.dtype != torch.float32 or values.dim() != 1 or not least <= len(values) <= owned:
            raise damaged(
                f"{name!r} is {values.dtype} of shape {tuple(values.shape)}, expected float32, at "
                "most one per sample"
            )


def damaged(damage: str) -> ValueError:
    """The error for a state that cannot be read; ``damage`` says why."""
    return ValueError(
        f"load_state_dict() got a damaged state: {damage}. Use an earlier checkpoint."
    )


def _kind_of(value: object) -> str:
    return "missing" if value is None else type(value).__name__


def _samples_of(shard: list[int]) -> str:
    first, step = shard
    return "all" if step == 1 else f"{first}, {first + step}, {first + 2 * step}, …"
