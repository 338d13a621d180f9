"""The pruner's file in the Trainer's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from infobatch.files import write_atomically

NAME = "infobatch.pt"


def write(folder: str, state: dict[str, Any]) -> None:
    """Write the state atomically."""
    write_atomically(Path(folder) / NAME, lambda temporary: torch.save(state, temporary))


def read(folder: str) -> dict[str, Any]:
    """Read the state, or raise an error if a run cannot continue from this checkpoint."""
    path = Path(folder) / NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"train(resume_from_checkpoint=…) got {folder}, which has no {NAME}: it was not saved by "
            "an InfoBatchTrainer, or with save_only_model=True. Expected a checkpoint with the scores "
            "that the next epochs are pruned by. To begin pruning from a plain Trainer's weights, "
            "load them into the model and start a new run."
        )
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return state
