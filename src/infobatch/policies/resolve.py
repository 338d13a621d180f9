"""The values that a user may pass as ``policy``."""

from __future__ import annotations

import dataclasses
from typing import Any

from infobatch.policies.base import Policy, check_policy
from infobatch.policies.checks import check_ratio
from infobatch.policies.registry import POLICIES


def resolve_policy(
    policy: Policy | str | None, *, ratio: float | None = None, sharded: bool = False
) -> Policy:
    """Turn a user's ``policy`` argument into a policy that fits the other arguments.

    Args:
        policy: the name of a rule, a policy, or None for the paper's rule.
        ratio: the share to prune, for the rules that have a ``ratio``; only with a name.
        sharded: whether the rule has to work on a shard of the scores.

    Returns:
        The policy, with its attributes checked.

    Raises:
        TypeError: if it is not a policy, has impossible attributes, or is not ``shardable`` where it
            has to be.
        ValueError: if there is no rule of that name, or it does not take a ratio.

    >>> resolve_policy("mean", ratio=0.3)
    MeanPrune(ratio=0.3, smoothing=0.0, side='below', rescale=True)
    """
    if ratio is not None:
        check_ratio("InfoBatch(prune_ratio=…)", ratio)
    if policy is None:
        policy = "mean"
    resolved = _named(policy, ratio) if isinstance(policy, str) else _given(policy, ratio)
    check_policy(resolved)
    if sharded and not resolved.shardable:
        raise TypeError(
            f"sharded=True got policy={resolved!r}, which is not known to work on a shard of the "
            "scores. If everything that it computes over all samples goes through samples.sum(), "
            "set its attribute shardable = True; otherwise use sharded=False."
        )
    return resolved


def _named(name: str, ratio: float | None) -> Policy:
    if name not in POLICIES:
        raise ValueError(
            f"policy={name!r} is not known. Expected one of {_names()}, or a policy of your own: an "
            "object of a class that derives from infobatch.Policy."
        )
    rule: Any = POLICIES[name]
    if ratio is not None and "ratio" not in {field.name for field in dataclasses.fields(rule)}:
        raise ValueError(
            f"prune_ratio={ratio} was given with policy={name!r}, which has no such ratio. Leave "
            "prune_ratio out, or pass a policy object with the settings that you want."
        )
    policy: Policy = rule() if ratio is None else rule(ratio=ratio)
    return policy


def _given(policy: Policy, ratio: float | None) -> Policy:
    if isinstance(policy, type):
        raise TypeError(
            f"policy={policy!r} is a class, expected an object: pass {policy.__name__}(…)."
        )
    if not isinstance(policy, Policy):
        kind = type(policy).__name__
        raise TypeError(
            f"policy={policy!r} is not a policy, expected one of {_names()}, or an object of a class "
            "that derives from infobatch.Policy"
            + (f": write class {kind}(infobatch.Policy)." if hasattr(policy, "strata") else ".")
        )
    if ratio is not None:
        raise ValueError(
            f"prune_ratio={ratio} and policy={policy!r} were both given. A policy object has its "
            "own ratio: leave prune_ratio out, or set it in the policy."
        )
    return policy


def _names() -> str:
    return ", ".join(map(repr, POLICIES))
