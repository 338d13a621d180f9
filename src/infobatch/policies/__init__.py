"""Pruning rules, which decide what an epoch leaves out: one per file, with one method."""

from infobatch.policies.auto import AutoPrune
from infobatch.policies.base import Policy, Samples
from infobatch.policies.dyn_unc import DynUncPrune
from infobatch.policies.epsilon_greedy import EpsilonGreedyPrune
from infobatch.policies.ies import IesPrune
from infobatch.policies.importance import ImportancePrune
from infobatch.policies.kakurenbo import KakurenboPrune
from infobatch.policies.mean import MeanPrune, SoftPrune
from infobatch.policies.noise import NoisePrune
from infobatch.policies.none import NoPrune
from infobatch.policies.order_dp import OrderDpPrune
from infobatch.policies.quantile import QuantilePrune
from infobatch.policies.random import RandomPrune
from infobatch.policies.rcap import RcapPrune
from infobatch.policies.registry import POLICIES, BiasedPolicyWarning, resolve_policy
from infobatch.policies.repb import RepbPrune
from infobatch.policies.rs2 import Rs2Prune
from infobatch.policies.seta import SetaPrune
from infobatch.policies.ucb import UcbPrune

__all__ = [
    "POLICIES",
    "AutoPrune",
    "BiasedPolicyWarning",
    "DynUncPrune",
    "EpsilonGreedyPrune",
    "IesPrune",
    "ImportancePrune",
    "KakurenboPrune",
    "MeanPrune",
    "NoPrune",
    "NoisePrune",
    "OrderDpPrune",
    "Policy",
    "QuantilePrune",
    "RandomPrune",
    "RcapPrune",
    "RepbPrune",
    "Rs2Prune",
    "Samples",
    "SetaPrune",
    "SoftPrune",
    "UcbPrune",
    "resolve_policy",
]
