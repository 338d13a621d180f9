"""The public names of infobatch.policies, available from the package itself."""

from infobatch.plan import keep_counts
from infobatch.policies.auto import AutoPrune
from infobatch.policies.base import Policy, Samples
from infobatch.policies.baselines.afss import AfssPrune
from infobatch.policies.baselines.dyn_unc import DynUncPrune
from infobatch.policies.baselines.epsilon_greedy import EpsilonGreedyPrune
from infobatch.policies.baselines.ies import IesPrune
from infobatch.policies.baselines.kakurenbo import KakurenboPrune
from infobatch.policies.baselines.order_dp import OrderDpPrune
from infobatch.policies.baselines.rcap import RcapPrune
from infobatch.policies.baselines.repb import RepbPrune
from infobatch.policies.baselines.rs2 import Rs2Prune
from infobatch.policies.baselines.seta import SetaPrune
from infobatch.policies.baselines.ucb import UcbPrune
from infobatch.policies.checks import check_ratio
from infobatch.policies.importance import ImportancePrune
from infobatch.policies.mean import MeanPrune, SoftPrune
from infobatch.policies.noise import NoisePrune
from infobatch.policies.none import NoPrune
from infobatch.policies.planning import BiasedPolicyWarning
from infobatch.policies.proportional import ProportionalPolicy
from infobatch.policies.quantile import QuantilePrune
from infobatch.policies.random import RandomPrune
from infobatch.policies.registry import POLICIES
from infobatch.policies.resolve import resolve_policy
from infobatch.registry import Entry, Registry

__all__ = [
    "POLICIES",
    "AfssPrune",
    "AutoPrune",
    "BiasedPolicyWarning",
    "DynUncPrune",
    "Entry",
    "EpsilonGreedyPrune",
    "IesPrune",
    "ImportancePrune",
    "KakurenboPrune",
    "MeanPrune",
    "NoPrune",
    "NoisePrune",
    "OrderDpPrune",
    "Policy",
    "ProportionalPolicy",
    "QuantilePrune",
    "RandomPrune",
    "RcapPrune",
    "Registry",
    "RepbPrune",
    "Rs2Prune",
    "Samples",
    "SetaPrune",
    "SoftPrune",
    "UcbPrune",
    "check_ratio",
    "keep_counts",
    "resolve_policy",
]
