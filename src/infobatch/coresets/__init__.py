"""Choosing a subset before training: the static methods that pruning is compared with.

``select`` runs any of them by name; each is also a function. If the method ranks samples, the
function returns one score per sample, where higher scores are chosen first; if it chooses a set,
the function takes ``k`` and returns the chosen samples.
"""

from infobatch.coresets.base import select, top_k
from infobatch.coresets.bilevel import glister
from infobatch.coresets.boundary import cal, deepfool
from infobatch.coresets.chance import random
from infobatch.coresets.coreset import Coreset, load_indices
from infobatch.coresets.coverage import ccs
from infobatch.coresets.dynamics import dyn_unc, forgetting, observed
from infobatch.coresets.error_norms import el2n, error_norms, full_gradient_norms, grand
from infobatch.coresets.geometry import contextual_diversity, herding, k_center
from infobatch.coresets.influence import dp, influence
from infobatch.coresets.inputs import Cost, History, Inputs
from infobatch.coresets.proxy import proxy
from infobatch.coresets.quantization import dataset_quantization
from infobatch.coresets.registry import METHODS
from infobatch.coresets.score_file import select_from_scores
from infobatch.coresets.submodular import craig, facility_location, graph_cut
from infobatch.coresets.uncertainty import entropy, least_confidence, margin
from infobatch.coresets.vectors import last_layer_gradients

__all__ = [
    "METHODS",
    "Coreset",
    "Cost",
    "History",
    "Inputs",
    "cal",
    "ccs",
    "contextual_diversity",
    "craig",
    "dataset_quantization",
    "deepfool",
    "dp",
    "dyn_unc",
    "el2n",
    "entropy",
    "error_norms",
    "facility_location",
    "forgetting",
    "full_gradient_norms",
    "glister",
    "grand",
    "graph_cut",
    "herding",
    "influence",
    "k_center",
    "last_layer_gradients",
    "least_confidence",
    "load_indices",
    "margin",
    "observed",
    "proxy",
    "random",
    "select",
    "select_from_scores",
    "top_k",
]
