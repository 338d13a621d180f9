"""Inputs of the methods: features, outputs, gradients and history, given or derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from infobatch.coresets.checks import Array, as_floats, as_labels, as_tensor
from infobatch.coresets.error_norms import error_norms
from infobatch.coresets.vectors import Vectors, as_vectors, last_layer_gradients
from infobatch.savings import FORWARD

GRADIENTS_OR_FEATURES = "gradients or features"


@dataclass(frozen=True)
class Cost:
    """The cost of a selection: training its proxy, and choosing.

    Attributes:
        seconds: the time that it took.
        samples_forwarded: all passes.
        samples_backpropagated: those with a training step.
        cpu_seconds: the processor time of this process, over all threads.
    """

    seconds: float = 0.0
    samples_forwarded: int = 0
    samples_backpropagated: int = 0
    cpu_seconds: float = 0.0

    @property
    def passes(self) -> int:
        """The equivalent number of training passes: three passes without gradients count as one."""
        looked_at = self.samples_forwarded - self.samples_backpropagated
        return self.samples_backpropagated + round(FORWARD * looked_at)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.samples_forwarded + other.samples_forwarded,
            self.samples_backpropagated + other.samples_backpropagated,
            self.cpu_seconds + other.cpu_seconds,
        )


@dataclass(frozen=True)
class History:
    """The course of a training run: (epochs, samples), NaN where a sample was not visited.

    Args:
        correct: whether the sample was classified correctly when it was visited.
        label_probabilities: how probable its label was.
    """

    correct: Array = None
    label_probabilities: Array = None


@dataclass(frozen=True)
class Inputs:
    """What a method may need, all optional: if something is missing, the method names it.

    Arrays have one row per sample, unless it is said otherwise.

    Args:
        features: the input of the last layer.
        logits: the outputs.
        probabilities: the softmax outputs, also of several networks: (networks, samples, classes).
        gradients: a matrix, or what :func:`last_layer_gradients` returns.
        gradient_norms, error_norms: (samples,) or (networks, samples).
        labels: the class of each sample.
        history: the course of a training run.
        scores: any measure of difficulty, higher for harder samples.
        validation: the same for held-out samples.
        model, data: for DeepFool, which needs the inputs themselves.
        cost: the cost of computing all this.
    """

    features: Array = None
    logits: Array = None
    probabilities: Array = None
    gradients: Array | Vectors = None
    gradient_norms: Array = None
    error_norms: Array = None
    labels: Array = None
    history: History | None = None
    scores: Array = None
    validation: Inputs | None = None
    model: nn.Module | None = None
    data: Dataset[Any] | None = None
    cost: Cost = field(default_factory=Cost)

    def updated(self, given: Mapping[str, Any]) -> Inputs:
        """Return a copy in which the given inputs replace these.

        Args:
            given: inputs by name; those that are None change nothing.

        Returns:
            The copy.
        """
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def find(self, name: str) -> Any:
        """Return one input in the form that methods take, derived from others if possible.

        Args:
            name: the name of an input.

        Returns:
            The input, or None if it can be derived from nothing that was given.
        """
        return _FINDERS[name](self)

    def count(self) -> int | None:
        """Count the samples.

        Returns:
            Their number, or None if nothing determines it.

        Raises:
            TypeError: if what determines it is not an array of numbers.
        """
        for name in ("labels", "features", "logits", "gradients", "scores", "data"):
            value = getattr(self, name)
            if value is not None:
                return len(value)
        for value in (self.error_norms, self.gradient_norms, self._of_history()):
            if value is not None:
                return int(as_tensor("select()", "norms", value).shape[-1])
        if self.probabilities is not None:
            return int(as_tensor("select()", "probabilities", self.probabilities).shape[-2])
        return None

    def _of_history(self) -> Array:
        if self.history is None:
            return None
        first, other = self.history.correct, self.history.label_probabilities
        return other if first is None else first


def _features(inputs: Inputs) -> torch.Tensor | None:
    return _floats("features", inputs.features)


def _logits(inputs: Inputs) -> torch.Tensor | None:
    return _floats("logits", inputs.logits)


def _floats(name: str, value: Array) -> torch.Tensor | None:
    return None if value is None else as_floats("select()", name, value, ndim=(2,))


def _probabilities(inputs: Inputs) -> torch.Tensor | None:
    if inputs.probabilities is not None:
        values = as_floats("select()", "probabilities", inputs.probabilities, ndim=(2, 3))
        return values.mean(0) if values.dim() == 3 else values
    logits = _logits(inputs)
    return None if logits is None else logits.softmax(1)


def _labels(inputs: Inputs) -> torch.Tensor | None:
    return None if inputs.labels is None else as_labels("select()", inputs.labels)


def _gradients(inputs: Inputs) -> Vectors | None:
    if inputs.gradients is not None:
        return as_vectors("select()", "gradients", inputs.gradients)
    parts = (inputs.features, _probabilities(inputs), inputs.labels)
    return None if any(part is None for part in parts) else last_layer_gradients(*parts)


def _vectors(inputs: Inputs) -> Vectors | None:
    values = _gradients(inputs)
    if values is None and inputs.features is not None:
        return as_vectors("select()", "features", inputs.features)
    return values


def _gradient_norms(inputs: Inputs) -> Any:
    if inputs.gradient_norms is not None:
        return inputs.gradient_norms
    gradients = _gradients(inputs)
    return None if gradients is None else gradients.squared_norms().sqrt()


def _error_norms(inputs: Inputs) -> Any:
    if inputs.error_norms is not None:
        return inputs.error_norms
    outputs = inputs.probabilities if inputs.probabilities is not None else _probabilities(inputs)
    if outputs is None or inputs.labels is None:
        return None
    return error_norms(outputs, inputs.labels)


def _scores(inputs: Inputs) -> Any:
    if inputs.scores is not None:
        return as_floats("select()", "scores", inputs.scores, ndim=(1,))
    norms = _error_norms(inputs)
    if norms is None:
        return None
    values = as_floats("select()", "error_norms", norms, ndim=(1, 2))
    return values if values.dim() == 1 else values.mean(0)


_FINDERS: dict[str, Callable[[Inputs], Any]] = {
    "features": _features,
    "logits": _logits,
    "probabilities": _probabilities,
    "labels": _labels,
    "gradients": _gradients,
    GRADIENTS_OR_FEATURES: _vectors,
    "gradient_norms": _gradient_norms,
    "error_norms": _error_norms,
    "scores": _scores,
    "correct": lambda inputs: inputs.history and inputs.history.correct,
    "label_probabilities": lambda inputs: inputs.history and inputs.history.label_probabilities,
    "model": lambda inputs: inputs.model,
    "data": lambda inputs: inputs.data,
}
# How a user passes each of them to select().
WAYS = {
    "features": "features=… (one row per sample)",
    "logits": "logits=… (one row per sample)",
    "probabilities": "probabilities=… or logits=…",
    "labels": "labels=…",
    "gradients": "gradients=…, or features=…, logits=… and labels=… for those of the last layer",
    GRADIENTS_OR_FEATURES: "gradients=…, or features=…, logits=… and labels=… for those of the last layer, or only features=…",
    "gradient_norms": "gradient_norms=…, gradients=…, or features=…, logits=… and labels=…",
    "error_norms": "error_norms=…, or probabilities=… (or logits=…) and labels=…",
    "scores": "scores=…, or probabilities=… (or logits=…) and labels=… for EL2N",
    "correct": "history=History(correct=…)",
    "label_probabilities": "history=History(label_probabilities=…)",
    "model": "model=…",
    "data": "data=…",
}
# (epochs or networks, samples); everything else has the samples first.
SAMPLES_LAST = ("gradient_norms", "error_norms", "correct", "label_probabilities")
