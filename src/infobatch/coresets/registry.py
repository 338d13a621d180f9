"""The methods by name, and the inputs of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infobatch.coresets.coverage import usual_beta
from infobatch.coresets.inputs import GRADIENTS_OR_FEATURES
from infobatch.registry import Entry, Registry


@dataclass(frozen=True)
class Method(Entry):
    """A method: where its function is, and how to call it.

    Args:
        needs: the names of the inputs that come first in the function's arguments.
        ranks: whether the function returns one score per sample, and higher scores are chosen first.
            Otherwise it takes ``k`` and returns the chosen samples, or these and their weights.
        counts: whether its only input is the number of samples.
        validates: the names of the inputs of its validation set.
        defaults: ``defaults(k, count)`` are settings that depend on the share of all samples chosen, and
            are then the same in each class.
    """

    needs: tuple[str, ...] = ()
    ranks: bool = False
    counts: bool = False
    validates: tuple[str, ...] = ()
    defaults: Callable[[int, int], dict[str, Any]] = lambda k, count: {}

    @property
    def function(self) -> Callable[..., Any]:
        """The method itself."""
        function: Callable[..., Any] = self.load()
        return function

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


# The line is the first of the function's docstring.
METHODS: Registry[Callable[..., Any], Method] = Registry(
    {
        "random": Method(
            "infobatch.coresets.chance:random",
            "Draw ``k`` of the samples, each subset with the same probability.",
            counts=True,
        ),
        "herding": Method(
            "infobatch.coresets.geometry:herding",
            "Choose so that the mean of the chosen samples stays as near as possible to the mean μ.",
            needs=("features",),
        ),
        "k_center": Method(
            "infobatch.coresets.geometry:k_center",
            "Repeatedly choose the sample that is farthest from all chosen ones.",
            needs=("features",),
        ),
        "contextual_diversity": Method(
            "infobatch.coresets.geometry:contextual_diversity",
            "K-center greedy by the symmetric KL divergence of a proxy's outputs.",
            needs=("probabilities",),
        ),
        "least_confidence": Method(
            "infobatch.coresets.uncertainty:least_confidence",
            "1 − max p: one score per sample.",
            needs=("probabilities",),
            ranks=True,
        ),
        "entropy": Method(
            "infobatch.coresets.uncertainty:entropy",
            "−Σ p ln p: one score per sample.",
            needs=("probabilities",),
            ranks=True,
        ),
        "margin": Method(
            "infobatch.coresets.uncertainty:margin",
            "−(p₁ − p₂), the two largest probabilities: one score per sample.",
            needs=("probabilities",),
            ranks=True,
        ),
        "forgetting": Method(
            "infobatch.coresets.dynamics:forgetting",
            "The number of changes from correct to wrong; a sample never correct ranks above all.",
            needs=("correct",),
            ranks=True,
        ),
        "grand": Method(
            "infobatch.coresets.error_norms:grand",
            "GraNd-R: the mean of ‖∇ℓ‖ over R networks.",
            needs=("gradient_norms",),
            ranks=True,
        ),
        "el2n": Method(
            "infobatch.coresets.error_norms:el2n",
            "EL2N-R: the mean of ‖p − y‖ over R networks, or over the first epochs of one.",
            needs=("error_norms",),
            ranks=True,
        ),
        "deepfool": Method(
            "infobatch.coresets.boundary:deepfool",
            "−‖r‖² for the smallest change r of the input that changes the class: nearest to the border first.",
            needs=("model", "data"),
            ranks=True,
        ),
        "cal": Method(
            "infobatch.coresets.boundary:cal",
            "CAL: the mean symmetric KL divergence to a sample's nearest neighbours, largest first.",
            needs=("features", "probabilities"),
            ranks=True,
        ),
        "craig": Method(
            "infobatch.coresets.submodular:craig",
            "CRAIG: weighted samples whose gradients represent all: facility location by −‖g − g'‖.",
            needs=(GRADIENTS_OR_FEATURES,),
        ),
        "glister": Method(
            "infobatch.coresets.bilevel:glister",
            "GLISTER: the largest ⟨g_i, ∇L_validation⟩, with a step of the last layer after each choice.",
            needs=("features", "logits", "labels"),
            validates=("features", "logits", "labels"),
        ),
        "graph_cut": Method(
            "infobatch.coresets.submodular:graph_cut",
            "Choose samples similar to all and unlike the chosen: gain λ Σ_i s_ij − 2 Σ_{i chosen} s_ij.",
            needs=(GRADIENTS_OR_FEATURES,),
        ),
        "facility_location": Method(
            "infobatch.coresets.submodular:facility_location",
            "Choose the samples that represent all others best: gain Σ_i max(0, s_ij − max_{chosen} s_i).",
            needs=(GRADIENTS_OR_FEATURES,),
        ),
        "influence": Method(
            "infobatch.coresets.influence:influence",
            "g_validationᵀ H⁻¹ g: how much the validation loss would rise without the sample.",
            needs=("features", "probabilities", "labels"),
            ranks=True,
            validates=("features", "probabilities", "labels"),
        ),
        "dp": Method(
            "infobatch.coresets.influence:dp",
            "DP: leave out the set whose absence changes the parameters least (smallest ‖Σ H⁻¹ g‖).",
            needs=("features", "probabilities", "labels"),
        ),
        "dyn_unc": Method(
            "infobatch.coresets.dynamics:dyn_unc",
            "Dyn-Unc: the standard deviation of p_y in a window of epochs, averaged over all windows.",
            needs=("label_probabilities",),
            ranks=True,
        ),
        "ccs": Method(
            "infobatch.coresets.coverage:ccs",
            "CCS: leave out the hardest, then draw as evenly as possible from strata of difficulty.",
            needs=("scores",),
            defaults=lambda k, count: {"beta": usual_beta(k, count)},
        ),
        "dataset_quantization": Method(
            "infobatch.coresets.quantization:dataset_quantization",
            "Dataset Quantization: divide the data into bins by graph cut, and draw evenly from each.",
            needs=("features",),
        ),
    }
)


def find_method(name: str) -> Method:
    """Return the method with this name.

    Raises:
        ValueError: if there is none.
    """
    if name not in METHODS:
        raise ValueError(f"select() got the method {name!r}, expected one of {', '.join(METHODS)}.")
    return METHODS.entries[name]
