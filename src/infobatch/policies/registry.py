"""The rules by name, and the values that a user may pass as ``policy``."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from infobatch.policies.auto import AutoPrune
from infobatch.policies.base import Policy
from infobatch.policies.checks import check_ratio
from infobatch.policies.dyn_unc import DynUncPrune
from infobatch.policies.epsilon_greedy import EpsilonGreedyPrune
from infobatch.policies.ies import IesPrune
from infobatch.policies.importance import ImportancePrune
from infobatch.policies.kakurenbo import KakurenboPrune
from infobatch.policies.mean import MeanPrune
from infobatch.policies.noise import NoisePrune
from infobatch.policies.none import NoPrune
from infobatch.policies.order_dp import OrderDpPrune
from infobatch.policies.quantile import QuantilePrune
from infobatch.policies.random import RandomPrune
from infobatch.policies.rcap import RcapPrune
from infobatch.policies.repb import RepbPrune
from infobatch.policies.rs2 import Rs2Prune
from infobatch.policies.seta import SetaPrune
from infobatch.policies.ucb import UcbPrune

Built = TypeVar("Built")


class BiasedPolicyWarning(UserWarning):
    """The expected gradient of the chosen rule is not that of the full data."""


# Each is a dataclass in a file with the same name.
POLICIES: dict[str, type[Any]] = {
    "mean": MeanPrune,
    "quantile": QuantilePrune,
    "random": RandomPrune,
    "none": NoPrune,
    "auto": AutoPrune,
    "noise": NoisePrune,
    "importance": ImportancePrune,
    "epsilon_greedy": EpsilonGreedyPrune,
    "ucb": UcbPrune,
    "dyn_unc": DynUncPrune,
    "rs2": Rs2Prune,
    "kakurenbo": KakurenboPrune,
    "seta": SetaPrune,
    "order_dp": OrderDpPrune,
    "repb": RepbPrune,
    "ies": IesPrune,
    "rcap": RcapPrune,
}


def resolve_policy(
    policy: Policy | str | None, *, ratio: float | None = None, sharded: bool = False
) -> Policy:
    """Turn a user's ``policy`` argument into a policy that fits the other arguments.

    ``ratio`` is for the rules that have one; ``sharded`` requires a rule that works on a shard of
    the scores.
    """
    resolved = _resolved(policy, ratio)
    if sharded and not getattr(resolved, "shardable", False):
        raise TypeError(
            f"sharded=True got policy={resolved!r}, which is not known to work on a shard of the "
            "scores. If everything that it computes over all samples goes through samples.sum(), "
            "set its attribute shardable = True; otherwise use sharded=False."
        )
    return resolved


def warn_if_biased(policy: Policy) -> None:
    """Warn the user once that a rule does not preserve the expected gradient."""
    if getattr(policy, "biased", False):
        warnings.warn(
            f"{policy!r} is biased: nothing makes up for the samples that it leaves out, so the "
            "expected gradient is not that of the full data. That is how the rule was published; "
            "docs/policies.md lists the rules that are unbiased.",
            BiasedPolicyWarning,
            stacklevel=3,
        )


def copied(build: Callable[..., Built], /, *args: Any, **options: Any) -> Built:
    """Build a copy of an object whose policy the user has already been warned about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedPolicyWarning)
        return build(*args, **options)


def _resolved(policy: Policy | str | None, ratio: float | None) -> Policy:
    if ratio is not None:
        check_ratio("InfoBatch(prune_ratio=…)", ratio)
    if policy is None:
        policy = "mean"
    if not isinstance(policy, str):
        return _checked_object(policy, ratio)
    if policy not in POLICIES:
        raise ValueError(
            f"policy={policy!r} is not known. Expected one of {', '.join(map(repr, POLICIES))}, or "
            "an object with a method strata(samples)."
        )
    rule = POLICIES[policy]
    if ratio is not None and "ratio" not in {field.name for field in dataclasses.fields(rule)}:
        raise ValueError(
            f"prune_ratio={ratio} was given with policy={policy!r}, which has no such ratio. Leave "
            "prune_ratio out, or pass a policy object with the settings that you want."
        )
    resolved: Policy = rule() if ratio is None else rule(ratio=ratio)
    return resolved


def _checked_object(policy: Policy, ratio: float | None) -> Policy:
    if isinstance(policy, type) or not callable(getattr(policy, "strata", None)):
        raise TypeError(
            f"policy={policy!r} has no method strata(samples). Expected one of "
            f"{', '.join(map(repr, POLICIES))}, or an object with that method."
        )
    if ratio is not None:
        raise ValueError(
            f"prune_ratio={ratio} and policy={policy!r} were both given. A policy object has its "
            "own ratio: leave prune_ratio out, or set it in the policy."
        )
    return policy
