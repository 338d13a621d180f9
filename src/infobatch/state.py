"""The checkpoint's format: what a state must look like before a pruner takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from infobatch.distributed import Ranks

STATE_VERSION = 1


def _share(share: Sequence[int]) -> str:
    first, step = share
    return "all" if step == 1 else f"{first}, {first + step}, {first + 2 * step}, …"


def check_state(state: object, num_samples: int, ranks: Ranks) -> None:
    """Refuse a state that is not whole, before anything is changed."""
    expected = {
        "version": int,
        "num_samples": int,
        "share": list,
        "seed": int,
        "epoch": int,
        "finished": int,
        "scores": torch.Tensor,
        "losses": torch.Tensor,
        "losses_by": str,
        "plan_check": int,
        "history": list,
    }
    if not isinstance(state, Mapping):
        raise TypeError(
            f"load_state_dict() got {type(state).__name__}, expected the dictionary that state_dict() "
            "returned."
        )
    version = state.get("version")
    if isinstance(version, int) and version != STATE_VERSION:
        raise ValueError(
            f"load_state_dict() got a state of version {version}, expected {STATE_VERSION}. Load it "
            "with the infobatch that saved it."
        )
    for key, kind in expected.items():
        if not isinstance(state.get(key), kind):
            raise ValueError(
                f"load_state_dict() got a damaged state: {key!r} is "
                f"{type(state[key]).__name__ if key in state else 'missing'}, expected "
                f"{kind.__name__}. Use an earlier checkpoint."
            )
    if state["num_samples"] != num_samples:
        raise ValueError(
            f"load_state_dict() got the state of a data set with {state['num_samples']} samples, "
            f"expected {num_samples}. Scores belong to samples: load it for the data it came from."
        )
    if state["share"] != list(ranks.share):
        raise ValueError(
            f"load_state_dict() got the scores of the samples {_share(state['share'])}, but this rank "
            f"keeps those of {_share(ranks.share)}. A sharded state belongs to its rank and number "
            "of ranks: load each rank's own, with as many ranks as saved it."
        )
    owned = ranks.owned(num_samples)
    sizes = {"scores": (owned, owned)}
    sizes["losses"] = (owned, owned) if state["losses_by"] == "index" else (0, owned)
    for key, (least, most) in sizes.items():
        tensor = state[key]
        if tensor.dtype != torch.float32 or tensor.dim() != 1 or not least <= len(tensor) <= most:
            raise ValueError(
                f"load_state_dict() got a damaged state: {key!r} is {tensor.dtype} of shape "
                f"{tuple(tensor.shape)}, expected float32, one number a sample. Use an earlier "
                "checkpoint."
            )
    whole_rows = all(isinstance(row, list) and len(row) >= 5 for row in state["history"])
    if state["losses_by"] not in ("index", "position") or not whole_rows or state["epoch"] < 0:
        raise ValueError(
            "load_state_dict() got a damaged state: 'losses_by', 'history' or 'epoch' is not what "
            "state_dict() writes. Use an earlier checkpoint."
        )
