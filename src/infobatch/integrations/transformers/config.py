"""What a user says about pruning to the Trainer."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.policies import Policy, resolve_policy
from infobatch.policies.ratio import check_ratio
from infobatch.pruner import Pruner

_DEFAULT_RATIO = 0.5


@dataclass(frozen=True)
class InfoBatchConfig:
    """How the Trainer's epochs are pruned; the arguments are those of :class:`infobatch.InfoBatch`.

    >>> InfoBatchConfig(prune_ratio=0.3, seed=1)
    InfoBatchConfig(prune_ratio=0.3, delta=0.875, seed=1, policy=None)
    """

    prune_ratio: float = _DEFAULT_RATIO
    delta: float = 0.875
    seed: int = 0
    policy: Policy | str | None = None

    def __post_init__(self) -> None:
        self.pruner_for(num_samples=1, num_epochs=1)  # refuses what it cannot take, here and now

    def pruner_for(self, num_samples: int, num_epochs: int) -> Pruner:
        """A new pruner, for loaders that Accelerate deals out to the ranks."""
        check_ratio("InfoBatchConfig(prune_ratio=…)", self.prune_ratio)
        own_ratio = self.policy is not None and self.prune_ratio == _DEFAULT_RATIO
        return Pruner(
            num_samples,
            num_epochs,
            policy=resolve_policy(self.policy, ratio=None if own_ratio else self.prune_ratio),
            delta=self.delta,
            seed=self.seed,
            global_order=True,
        )
