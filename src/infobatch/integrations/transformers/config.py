"""The Trainer's settings for pruning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from infobatch.checks import Rows
from infobatch.policies import Policy, resolve_policy
from infobatch.pruner import Pruner


@dataclass(frozen=True)
class InfoBatchConfig:
    """How the Trainer's epochs are pruned; the arguments are those of :class:`infobatch.InfoBatch`.

    >>> InfoBatchConfig(save=0.3, seed=1)
    InfoBatchConfig(prune_ratio=None, delta=None, seed=1, policy=None, save=0.3, warmup=0, max_noise=None, protect_classes=None)
    """

    prune_ratio: float | None = None
    delta: float | None = None
    seed: int = 0
    policy: Policy | str | None = None
    save: float | None = None
    warmup: int = 0
    max_noise: float | None = None
    protect_classes: float | None = None
    cost: Rows | None = field(default=None, repr=False, compare=False)
    labels: Rows | None = field(default=None, repr=False, compare=False)
    initial_scores: Rows | str | PathLike[str] | None = field(
        default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse settings that are wrong for any data; the rest is checked with the data."""
        if self._needs_data:
            without: dict[str, Any] = dict.fromkeys(self._needs_data)
            replace(self, **without)
        else:
            self.pruner_for(num_samples=1, num_epochs=1)

    @property
    def _needs_data(self) -> tuple[str, ...]:
        """The given settings that can only be checked together with the data or the epochs."""
        names = ("save", "protect_classes", "cost", "labels", "initial_scores")
        return tuple(name for name in names if getattr(self, name) is not None)

    def pruner_for(self, num_samples: int, num_epochs: int) -> Pruner:
        """Create a pruner for loaders whose batches Accelerate shards among the ranks."""
        return Pruner(
            num_samples,
            num_epochs,
            policy=resolve_policy(self.policy, ratio=self.prune_ratio),
            delta=self.delta,
            seed=self.seed,
            save=self.save,
            cost=self.cost,
            warmup=self.warmup,
            max_noise=self.max_noise,
            protect_classes=self.protect_classes,
            labels=self.labels,
            initial_scores=self.initial_scores,
            global_order=True,
        )
