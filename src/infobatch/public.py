"""The public names of infobatch, available from the package itself: ``infobatch.Pruner``."""

from infobatch import coresets, scoring, tracks
from infobatch.batch import Indexed, with_index
from infobatch.dataset import InfoBatch
from infobatch.forecast import Forecast, RuleForecast
from infobatch.keyed.pruner import KeyedPruner
from infobatch.loader import PrunedLoader
from infobatch.per_sample import PerSample
from infobatch.plan import Plan, Strata
from infobatch.policies import (
    AutoPrune,
    BiasedPolicyWarning,
    ImportancePrune,
    MeanPrune,
    NoisePrune,
    NoPrune,
    Policy,
    QuantilePrune,
    RandomPrune,
    Samples,
    SoftPrune,
)
from infobatch.policies.options import Options
from infobatch.probe import Probe
from infobatch.pruner import Pruner
from infobatch.savings import EpochPasses, Savings, StreamSavings
from infobatch.schedule import PacedScheduler, paced
from infobatch.scores import score
from infobatch.stream import Kept, StreamPruner

__all__ = [
    "AutoPrune",
    "BiasedPolicyWarning",
    "EpochPasses",
    "Forecast",
    "ImportancePrune",
    "Indexed",
    "InfoBatch",
    "Kept",
    "KeyedPruner",
    "MeanPrune",
    "NoPrune",
    "NoisePrune",
    "Options",
    "PacedScheduler",
    "PerSample",
    "Plan",
    "Policy",
    "Probe",
    "PrunedLoader",
    "Pruner",
    "QuantilePrune",
    "RandomPrune",
    "RuleForecast",
    "Samples",
    "Savings",
    "SoftPrune",
    "Strata",
    "StreamPruner",
    "StreamSavings",
    "coresets",
    "paced",
    "score",
    "scoring",
    "tracks",
    "with_index",
]
