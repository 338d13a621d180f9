"""Which samples an epoch may leave out: one rule a file, all behind one method.

A policy is any object with ``strata(scores) -> Strata``. The built-in ones can be named by a string.
"""

from __future__ import annotations

import inspect
from typing import Protocol

from infobatch.plan import FloatArray, Strata
from infobatch.policies.mean import SoftPrune
from infobatch.policies.none import NoPrune
from infobatch.policies.quantile import QuantilePrune
from infobatch.policies.random import RandomPrune

__all__ = [
    "POLICIES",
    "NoPrune",
    "Policy",
    "QuantilePrune",
    "RandomPrune",
    "SoftPrune",
    "check_shardable",
    "resolve_policy",
]


class Policy(Protocol):
    """Sorts samples into strata by their scores."""

    def strata(self, scores: FloatArray) -> Strata:
        """Say how to prune, given a float32 score a sample (read-only, NaN where never seen).

        Called once at the start of each pruned epoch. Must be deterministic: all randomness is in
        the draw that follows. Samples without a score are kept whatever the policy says of them.

        A policy for sharded scores takes ``reduce`` too, a function that adds a float64 array up
        over the ranks: the scores are then those of one rank's share.
        """
        ...


def check_shardable(policy: Policy) -> None:
    """Refuse a policy that can only judge scores that are all in one place."""
    if "reduce" not in inspect.signature(policy.strata).parameters:
        raise TypeError(
            f"sharded=True got policy={policy!r}, whose strata() takes no argument reduce. Expected "
            "strata(scores, reduce): thresholds of all scores have to be summed over the ranks."
        )


POLICIES: dict[str, type[SoftPrune | QuantilePrune | RandomPrune | NoPrune]] = {
    "mean": SoftPrune,
    "quantile": QuantilePrune,
    "random": RandomPrune,
    "none": NoPrune,
}


def resolve_policy(policy: Policy | str | None, *, ratio: float | None = None) -> Policy:
    """Turn what a user may pass as ``policy`` into one; ``ratio`` is for the rules that have one."""
    if policy is None:
        policy = "mean"
    if not isinstance(policy, str):
        if not callable(getattr(policy, "strata", None)):
            raise TypeError(
                f"policy={policy!r} has no method strata(scores). Expected one of "
                f"{', '.join(map(repr, POLICIES))}, or an object with that method."
            )
        if ratio is not None:
            raise ValueError(
                f"prune_ratio={ratio} and policy={policy!r} were both given. A policy object brings "
                "its own ratio: leave prune_ratio out, or set it in the policy."
            )
        return policy
    if policy not in POLICIES:
        raise ValueError(
            f"policy={policy!r} is not known. Expected one of {', '.join(map(repr, POLICIES))}, or "
            "an object with a method strata(scores)."
        )
    rule = POLICIES[policy]
    if ratio is None:
        return rule()
    if rule is SoftPrune or rule is RandomPrune:
        return rule(ratio)
    raise ValueError(
        f"prune_ratio={ratio} was given with policy={policy!r}, which has no such ratio. Leave "
        "prune_ratio out, or pass a policy object with the settings that you want."
    )
