"""The Trainer's settings for pruning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from infobatch.policies import Policy, resolve_policy
from infobatch.pruner import Pruner


@dataclass(frozen=True)
class InfoBatchConfig:
    """How the Trainer's epochs are pruned; the arguments are those of :class:`infobatch.InfoBatch`.

    >>> InfoBatchConfig(prune_ratio=0.3, seed=1)
    InfoBatchConfig(prune_ratio=0.3, delta=0.875, seed=1, policy=None)
    """

    prune_ratio: float | None = None
    delta: float = 0.875
    seed: int = 0
    policy: Policy | str | None = None
    initial_scores: torch.Tensor | np.ndarray[Any, Any] | str | PathLike[str] | None = field(
        default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.initial_scores is None:
            self.pruner_for(
                num_samples=1, num_epochs=1
            )  # refuses what it cannot take, here and now
        else:  # whether they fit the data shows when there is data
            replace(self, initial_scores=None)

    def pruner_for(self, num_samples: int, num_epochs: int) -> Pruner:
        """A new pruner, for loaders whose batches Accelerate shards among the ranks."""
        return Pruner(
            num_samples,
            num_epochs,
            policy=resolve_policy(self.policy, ratio=self.prune_ratio),
            delta=self.delta,
            seed=self.seed,
            initial_scores=self.initial_scores,
            global_order=True,
        )
