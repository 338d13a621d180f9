"""InfoBatch: train on less data, get the same model.

Each epoch leaves out, at random, some of the samples whose loss is below the mean, and scales up the
loss of those that stay, so that the expected gradient is that of the full data.
"""

from infobatch import scoring
from infobatch.batch import Indexed, with_index
from infobatch.dataset import InfoBatch
from infobatch.per_sample import PerSample
from infobatch.plan import Plan, Strata
from infobatch.policies import NoPrune, QuantilePrune, RandomPrune, SoftPrune
from infobatch.pruner import Pruner
from infobatch.savings import Savings
from infobatch.schedule import paced

__all__ = [
    "Indexed",
    "InfoBatch",
    "NoPrune",
    "PerSample",
    "Plan",
    "Pruner",
    "QuantilePrune",
    "RandomPrune",
    "Savings",
    "SoftPrune",
    "Strata",
    "paced",
    "scoring",
    "with_index",
]
__version__ = "0.1.0"
