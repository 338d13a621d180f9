"""The methods by name, and the inputs of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infobatch.coresets.bilevel import glister
from infobatch.coresets.boundary import cal, deepfool
from infobatch.coresets.chance import random
from infobatch.coresets.coverage import ccs, usual_beta
from infobatch.coresets.dynamics import dyn_unc, forgetting
from infobatch.coresets.error_norms import el2n, grand
from infobatch.coresets.geometry import contextual_diversity, herding, k_center
from infobatch.coresets.influence import dp, influence
from infobatch.coresets.inputs import GRADIENTS_OR_FEATURES
from infobatch.coresets.quantization import dataset_quantization
from infobatch.coresets.submodular import craig, facility_location, graph_cut
from infobatch.coresets.uncertainty import entropy, least_confidence, margin


@dataclass(frozen=True)
class Method:
    """A method: its function, and the names of the inputs that come first in its arguments.

    If ``ranks`` is true, the function returns one score per sample, and higher scores are chosen
    first. Otherwise it takes ``k`` and returns the chosen samples, or these and their weights. If
    ``counts`` is true, its only input is the number of samples. ``validates`` names the inputs of
    its validation set. ``defaults(k, count)`` are settings that depend on the share of all samples
    chosen, and are then the same in each class.
    """

    function: Callable[..., Any]
    needs: tuple[str, ...]
    ranks: bool = False
    counts: bool = False
    validates: tuple[str, ...] = ()
    defaults: Callable[[int, int], dict[str, Any]] = lambda k, count: {}

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its further settings."""
        keywords = inspect.signature(self.function).parameters.values()
        names = (keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY)
        return tuple(name for name in names if name not in ("seed", "validation"))

    @property
    def takes_seed(self) -> bool:
        """Whether the method is random."""
        return "seed" in inspect.signature(self.function).parameters

    @property
    def summary(self) -> str:
        """A one-line description."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


METHODS: dict[str, Method] = {
    "random": Method(random, (), counts=True),
    "herding": Method(herding, ("features",)),
    "k_center": Method(k_center, ("features",)),
    "contextual_diversity": Method(contextual_diversity, ("probabilities",)),
    "least_confidence": Method(least_confidence, ("probabilities",), ranks=True),
    "entropy": Method(entropy, ("probabilities",), ranks=True),
    "margin": Method(margin, ("probabilities",), ranks=True),
    "forgetting": Method(forgetting, ("correct",), ranks=True),
    "grand": Method(grand, ("gradient_norms",), ranks=True),
    "el2n": Method(el2n, ("error_norms",), ranks=True),
    "deepfool": Method(deepfool, ("model", "data"), ranks=True),
    "cal": Method(cal, ("features", "probabilities"), ranks=True),
    "craig": Method(craig, (GRADIENTS_OR_FEATURES,)),
    "glister": Method(
        glister, ("features", "logits", "labels"), validates=("features", "logits", "labels")
    ),
    "graph_cut": Method(graph_cut, (GRADIENTS_OR_FEATURES,)),
    "facility_location": Method(facility_location, (GRADIENTS_OR_FEATURES,)),
    "influence": Method(
        influence,
        ("features", "probabilities", "labels"),
        ranks=True,
        validates=("features", "probabilities", "labels"),
    ),
    "dp": Method(dp, ("features", "probabilities", "labels")),
    "dyn_unc": Method(dyn_unc, ("label_probabilities",), ranks=True),
    "ccs": Method(ccs, ("scores",), defaults=lambda k, count: {"beta": usual_beta(k, count)}),
    "dataset_quantization": Method(dataset_quantization, ("features",)),
}


def find_method(name: str) -> Method:
    """Return the method with this name, or refuse it."""
    if name not in METHODS:
        raise ValueError(f"select() got the method {name!r}, expected one of {', '.join(METHODS)}.")
    return METHODS[name]
