"""The complete checkpoint format, and the migration of older formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed.ranks import Ranks
from infobatch.memory.memory import SCORE
from infobatch.plan import FloatArray, Shard
from infobatch.savings import EpochPasses

VERSION = 2


@dataclass(frozen=True)
class State:
    """Everything needed to continue bit for bit.

    ``losses`` are those of the running epoch, in the order of its plan or, with ``losses_by``
    "index", by sample index. ``plan_check`` verifies that the plan is the same when it is drawn
    again.
    """

    num_samples: int
    shard: Shard  # which samples the rows belong to
    seed: int
    epoch: int
    finished: int  # the last epoch that was completed, -1 before the first
    columns: Mapping[str, npt.NDArray[Any]]
    losses: FloatArray
    extras: Mapping[str, FloatArray]  # further reported values, in the same form as the losses
    losses_by: str  # "position" or "index"
    plan_check: int
    batch: int  # the largest number of samples in an update so far
    history: tuple[EpochPasses, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain tensors and numbers that ``torch.load(weights_only=True)`` can read."""
        return {
            "version": VERSION,
            "num_samples": self.num_samples,
            "shard": list(self.shard),
            "seed": self.seed,
            "epoch": self.epoch,
            "finished": self.finished,
            "columns": {name: _tensor(column) for name, column in self.columns.items()},
            "losses": torch.from_numpy(self.losses),
            "extras": {name: torch.from_numpy(values) for name, values in self.extras.items()},
            "losses_by": self.losses_by,
            "plan_check": self.plan_check,
            "batch": self.batch,
            "history": [_row(passes) for passes in self.history],
        }

    @classmethod
    def from_dict(cls, state: object, num_samples: int, ranks: Ranks) -> State:
        """Read a state; refuse one that is damaged or belongs to other data."""
        if not isinstance(state, Mapping):
            raise TypeError(
                f"load_state_dict() got {type(state).__name__}, expected the dictionary that "
                "state_dict() returned."
            )
        fields = _migrated(state)
        _check_types(fields)
        _check_fit(fields, num_samples, ranks)
        return cls(
            num_samples=fields["num_samples"],
            shard=Shard(*fields["shard"]),
            seed=fields["seed"],
            epoch=fields["epoch"],
            finished=fields["finished"],
            columns={name: _array(column) for name, column in fields["columns"].items()},
            losses=_array(fields["losses"]),
            extras={name: _array(values) for name, values in fields["extras"].items()},
            losses_by=fields["losses_by"],
            plan_check=fields["plan_check"],
            batch=fields.get("batch", 0),
            history=tuple(
                EpochPasses(**{**row, "thresholds": tuple(row["thresholds"])})
                for row in fields["history"]
            ),
        )


_PASSES = {field.name for field in dataclasses.fields(EpochPasses)}
_OPTIONAL = {"planned_cost", "refreshed", "refreshed_cost"}
_TYPES = {
    "num_samples": int,
    "shard": list,
    "seed": int,
    "epoch": int,
    "finished": int,
    "columns": Mapping,
    "losses": torch.Tensor,
    "extras": Mapping,
    "losses_by": str,
    "plan_check": int,
    "history": list,
}


def _migrated(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current version's fields from a state of this or an older version."""
    version = state.get("version")
    fields = dict(state)
    if version == 1:  # had only the scores, and called a shard a share
        fields["columns"] = {SCORE: fields.pop("scores", None)}
        fields["shard"] = fields.pop("share", None)
        fields["extras"] = {}
        fields["history"] = [_passes_of_version_1(row) for row in fields.get("history", [])]
    elif version != VERSION:
        raise ValueError(
            f"load_state_dict() got a state of version {version!r}, expected {VERSION} or 1. Load it "
            "with the version of infobatch that saved it."
        )
    return fields


def _row(passes: EpochPasses) -> dict[str, Any]:
    """Return an epoch's numbers by name, without those that are None."""
    numbers = {**asdict(passes), "thresholds": list(passes.thresholds)}
    return {name: number for name, number in numbers.items() if number is not None}


def _passes_of_version_1(row: object) -> object:
    """Return an epoch's numbers by name, without those that version 1 did not have."""
    if not isinstance(row, list) or len(row) < 5:
        return row
    epoch, full, planned, made, unscored, *thresholds = row
    passes = EpochPasses(epoch, full, planned, made, unscored, tuple(thresholds))
    return _row(passes)


def _check_types(fields: dict[str, Any]) -> None:
    for key, kind in _TYPES.items():
        if not isinstance(fields.get(key), kind):
            raise _damaged(f"{key!r} is {_kind_of(fields.get(key))}, expected {kind.__name__}")
    for name in {SCORE: None, **fields["columns"]}:
        column = fields["columns"].get(name)
        if not isinstance(column, torch.Tensor):
            what = "its scores are" if name == SCORE else f"column {name!r} is"
            raise _damaged(f"{what} {_kind_of(column)}, expected Tensor")
    rows = all(
        isinstance(row, Mapping) and _PASSES - _OPTIONAL <= set(row) <= _PASSES
        for row in fields["history"]
    )
    if fields["losses_by"] not in ("index", "position") or not rows or fields["epoch"] < 0:
        raise _damaged("'losses_by', 'history' or 'epoch' is not what state_dict() writes")


def _check_fit(fields: dict[str, Any], num_samples: int, ranks: Ranks) -> None:
    if fields["num_samples"] != num_samples:
        raise ValueError(
            f"load_state_dict() got the state of a data set with {fields['num_samples']} samples, "
            f"expected {num_samples}. Scores belong to samples: load it for the data it came from."
        )
    if fields["shard"] != list(ranks.shard):
        raise ValueError(
            f"load_state_dict() got the scores of the samples {_samples_of(fields['shard'])}, but this "
            f"rank keeps those of {_samples_of(list(ranks.shard))}. A sharded state belongs to its "
            "rank and number of ranks: load one per rank, with the same number of ranks."
        )
    owned = ranks.owned(num_samples)
    for name, column in fields["columns"].items():
        wrong_type = name == SCORE and column.dtype != torch.float32
        if column.shape[:1] != (owned,) or wrong_type:
            raise _damaged(
                f"column {name!r} is {column.dtype} of shape {tuple(column.shape)}, expected one row "
                f"per sample ({owned})"
            )
    least = owned if fields["losses_by"] == "index" else 0
    for name, values in {"losses": fields["losses"], **fields["extras"]}.items():
        if values.dtype != torch.float32 or values.dim() != 1 or not least <= len(values) <= owned:
            raise _damaged(
                f"{name!r} is {values.dtype} of shape {tuple(values.shape)}, expected float32, at "
                "most one per sample"
            )


def _damaged(what: str) -> ValueError:
    return ValueError(f"load_state_dict() got a damaged state: {what}. Use an earlier checkpoint.")


def _kind_of(value: object) -> str:
    return "missing" if value is None else type(value).__name__


def _samples_of(shard: list[int]) -> str:
    first, step = shard
    return "all" if step == 1 else f"{first}, {first + step}, {first + 2 * step}, …"


def _tensor(column: npt.NDArray[Any]) -> torch.Tensor:
    # torch.save and torch.distributed support uint16 only in part.
    return torch.from_numpy(column.astype(np.int32) if column.dtype == np.uint16 else column)


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.cpu().numpy().copy()
    return array
