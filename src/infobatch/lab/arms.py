"""The arms of a comparison: what each trains on, and what it must cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infobatch.policies import POLICIES, Policy, RandomPrune, resolve_policy

FULL, SHORT, RANDOM, INFOBATCH = "full", "short", "random", "infobatch"
DELTA = 0.875


@dataclass(frozen=True)
class Arm:
    """One arm: full data, fewer epochs of it, random pruning, or a policy by its name."""

    name: str

    @property
    def prunes(self) -> bool:
        """Whether epochs are pruned."""
        return self.name not in (FULL, SHORT)

    @property
    def follows(self) -> bool:
        """Whether its cost is set to that of another arm, which therefore runs before it."""
        return self.name in (SHORT, RANDOM)

    def policy(self, *, num_samples: int, epochs: int, budget: int | None) -> Policy:
        """The pruning policy; ``budget`` is the number of sample passes of an arm that follows."""
        if self.name == RANDOM:
            assert budget is not None
            # The first epoch is whole for every policy, and so are the last ones.
            pruned_epochs = math.ceil(round(DELTA * epochs, 9)) - 1
            if pruned_epochs < 1:
                return resolve_policy("none")
            ratio = (num_samples * epochs - budget) / (num_samples * pruned_epochs)
            return RandomPrune(ratio=min(max(ratio, 0.0), 0.99))
        names = {FULL: "none", SHORT: "none", INFOBATCH: "mean"}
        return resolve_policy(names.get(self.name, self.name))


def parse_arms(text: str) -> list[Arm]:
    """Read a list of arms such as ``full,short,random,infobatch,quantile``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [FULL, SHORT, RANDOM, INFOBATCH, *sorted(set(POLICIES) - {"none", "random"})]
    for name in names:
        if name not in known:
            raise ValueError(f"There is no arm {name!r}. Expected some of {', '.join(known)}.")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"--arms got {text!r}, expected each arm once and at least one.")
    arms = [Arm(name) for name in names]
    leader_of(arms)
    return arms


def in_order(arms: Sequence[Arm]) -> list[Arm]:
    """The order of running: those that follow come last, for they cost what their leader did."""
    return sorted(arms, key=lambda arm: arm.follows)


def leader_of(arms: Sequence[Arm]) -> Arm | None:
    """The pruned arm whose cost ``short`` and ``random`` are set to: infobatch, or the first one."""
    leaders = [arm for arm in arms if not arm.follows and arm.prunes]
    if not leaders and any(arm.follows for arm in arms):
        raise ValueError(
            "The arms short and random cost what a pruned arm costs, and there is none. Add infobatch."
        )
    return next((arm for arm in leaders if arm.name == INFOBATCH), leaders[0] if leaders else None)
