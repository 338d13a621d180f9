"""The pruner's file in the Trainer's checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from infobatch.trainers import write_atomically

NAME = "infobatch.pt"


@dataclass(frozen=True)
class Checkpoint:
    """A position in a training run, and the scores known there.

    Attributes:
        pruner: The state of the pruner.
        epoch: The epoch to be continued, from 0.
        samples_done: The samples of that epoch that were trained on, over all ranks.
        samples_per_batch: The samples of a batch, over all ranks.
        steps_per_epoch: The steps of the learning-rate schedule in an epoch over all data.
        steps: The steps of the learning-rate schedule in the whole run.
        num_epochs: The epochs of the whole run, the last of which may be broken off.
    """

    pruner: dict[str, Any]
    epoch: int
    samples_done: int
    samples_per_batch: int
    steps_per_epoch: int
    steps: int
    num_epochs: int

    def write(self, folder: str) -> None:
        """Write the file atomically."""
        state = asdict(self)
        write_atomically(Path(folder) / NAME, lambda temporary: torch.save(state, temporary))

    @classmethod
    def read(cls, folder: str) -> Checkpoint:
        """Read the file.

        Raises:
            FileNotFoundError: If there is none, so that the run cannot continue from here.
        """
        path = Path(folder) / NAME
        if not path.is_file():
            raise FileNotFoundError(
                f"train(resume_from_checkpoint=…) got {folder}, which has no {NAME}: it was not saved "
                "by an InfoBatchTrainer, or with save_only_model=True. Expected a checkpoint with the "
                "scores that the next epochs are pruned by. To begin pruning from a plain Trainer's "
                "weights, load them into the model and start a new run."
            )
        return cls(**torch.load(path, weights_only=True, map_location="cpu"))
