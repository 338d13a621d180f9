"""The state in the form that torch.distributed.checkpoint needs."""

from __future__ import annotations

import json
from typing import Any

import torch


class Checkpointable:
    """A data set or pruner for ``torch.distributed.checkpoint``.

    ``dcp.load`` reads into tensors whose names and sizes must match those in the checkpoint, so here
    the losses of the running epoch always have the full length. Pass one to both calls:
    ``dcp.save({"data": Checkpointable(train_data), …})``, ``dcp.load({"data": Checkpointable(train_data),
    …})``.

    Args:
        train_data: an ``InfoBatch`` or a ``Pruner``.
    """

    def __init__(self, train_data: Any) -> None:
        self._train_data = train_data

    def state_dict(self) -> dict[str, Any]:
        """The state, with names and sizes that do not depend on the progress of the training."""
        state = self._train_data.state_dict()
        count, size = len(state["losses"]), len(state["columns"]["score"])
        pruner = getattr(self._train_data, "pruner", self._train_data)
        extras = {name: state["extras"].get(name, torch.empty(0)) for name in pruner._channels}
        return {
            **state,
            "losses": _padded(state["losses"], size),
            "extras": {name: _padded(values, size) for name, values in extras.items()},
            "num_losses": count,
            "history": json.dumps(state["history"]),  # a string, not a key for each epoch
            "shadows": {
                name: {**shadow, "history": json.dumps(shadow["history"])}
                for name, shadow in state["shadows"].items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from such a state.

        Args:
            state: what :meth:`state_dict` returned, after ``dcp.load`` has filled it.

        Raises:
            ValueError: if the state belongs to other data, as ``train_data.load_state_dict`` does.
        """
        state = dict(state)
        count = state.pop("num_losses")
        state["losses"] = state["losses"][:count]
        extras = state.get("extras", {}).items()  # the checkpoint omits it if it is empty
        state["extras"] = {name: values[:count] for name, values in extras if count}
        state["history"] = json.loads(state["history"])
        shadows = state.get("shadows", {}).items()
        state["shadows"] = {
            name: {**shadow, "history": json.loads(shadow["history"])} for name, shadow in shadows
        }
        self._train_data.load_state_dict(state)


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    padded = torch.full((size,), float("nan"))
    padded[: len(values)] = values
    return padded
