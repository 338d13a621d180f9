"""Choose a subset before training: one call for every method."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, as_labels, check_fraction, check_k
from infobatch.coresets.coreset import Coreset
from infobatch.coresets.inputs import SAMPLES_LAST, WAYS, Cost, History, Inputs
from infobatch.coresets.registry import Method, find_method
from infobatch.coresets.submodular import Weights
from infobatch.coresets.vectors import Dense, OuterProducts, Vectors


def select(
    method: str,
    *,
    fraction: float,
    labels: Array = None,
    balanced: bool = False,
    seed: int = 0,
    inputs: Inputs | None = None,
    features: Array = None,
    logits: Array = None,
    probabilities: Array = None,
    gradients: Array | Vectors = None,
    gradient_norms: Array = None,
    error_norms: Array = None,
    history: History | None = None,
    scores: Array = None,
    validation: Inputs | None = None,
    model: nn.Module | None = None,
    data: Dataset[Any] | None = None,
    **options: Any,
) -> Coreset:
    """Choose a share of the samples by a method, given its inputs.

    Args:
        method: the name of a method, one of ``METHODS``.
        fraction: the share of the samples to choose, in (0, 1].
        labels: the class of each sample.
        balanced: each class of ``labels`` keeps the same share, and methods that choose a set do so class by
            class, which also takes far less time and memory.
        seed: matters for methods that draw; the same arguments give the same choice.
        inputs: the result of :func:`proxy`; the arguments below replace single inputs.
        features, logits, probabilities, gradients, gradient_norms, error_norms, history, scores, validation:
            what the method chooses by, see :class:`Inputs`.
        model, data: the network and the samples themselves, for DeepFool.
        **options: further settings of the method's function.

    Returns:
        The chosen samples, their weights, and what choosing them cost.

    Raises:
        ValueError: if there is no such method, or it lacks an input; the message names it.
        TypeError: if the method has no such setting.

    >>> import torch
    >>> points = torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]])
    >>> select("k_center", features=points, fraction=0.4).indices.tolist()
    [3, 4]
    """
    began, cpu = time.perf_counter(), time.process_time()
    known = find_method(method)
    share = check_fraction("select()", fraction)
    given = (inputs or Inputs()).updated(
        {
            "features": features,
            "logits": logits,
            "probabilities": probabilities,
            "gradients": gradients,
            "gradient_norms": gradient_norms,
            "error_norms": error_norms,
            "labels": labels,
            "history": history,
            "scores": scores,
            "validation": validation,
            "model": model,
            "data": data,
        }
    )
    settings = _settings(method, known, given, options)
    values = _needed(method, known, given)
    count = _count(method, given, values)
    k = max(1, round(share * count))
    settings = {**known.defaults(k, count), **settings}
    classes = _classes(given, count) if balanced else None
    ranking, passes = None, []
    if known.ranks:
        with _counted(values.get("model")) as passes:
            scored = known.function(*values.values(), **settings)
        ranking = _as_ranking(f"select({method!r})", scored)
        chosen, weights = top_k(ranking, k, classes), np.ones(k, np.float32)
    else:
        choice = _Choice(known, values, settings, seed)
        chosen, weights = (
            choice.of_all(count, k) if classes is None else choice.by_class(classes, k)
        )
    spent = Cost(
        time.perf_counter() - began,
        samples_forwarded=sum(passes),
        cpu_seconds=time.process_time() - cpu,
    )
    return Coreset(chosen, weights, method, given.cost + spent, count, ranking)


@contextmanager
def _counted(model: nn.Module | None) -> Iterator[list[int]]:
    """Count DeepFool's passes: one forward, and one backward to the input for each class."""
    passes: list[int] = []
    if model is None:
        yield passes
        return

    def note(_: nn.Module, inputs: object, logits: torch.Tensor) -> None:
        passes.append(len(logits) + logits.numel())

    hook = model.register_forward_hook(note)
    try:
        yield passes
    finally:
        hook.remove()


def top_k(scores: Array, k: int, classes: Array = None) -> Indices:
    """Choose the samples with the highest scores; ties go to the lower index.

    Args:
        scores: one per sample.
        k: how many samples to choose.
        classes: one number per sample; each class then gets its part of ``k``.

    Returns:
        The indices of the chosen samples, the highest score first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> top_k([0.1, 0.9, 0.5, 0.9], 2).tolist()
    [1, 3]
    """
    ranking = _as_ranking("top_k()", scores)
    k = check_k("top_k()", k, len(ranking))
    order = np.argsort(-ranking, kind="stable")
    if classes is None:
        return order[:k]
    numbers = as_labels("top_k()", classes, count=len(order)).numpy()
    kept = np.zeros(len(order), bool)
    for number, quota in class_quotas(numbers, k).items():
        kept[order[numbers[order] == number][:quota]] = True
    return order[kept[order]]


def class_quotas(labels: np.ndarray[Any, np.dtype[np.int64]], k: int) -> dict[int, int]:
    """How many of ``k`` samples each class gets: its share, rounded so that the sum is exact.

    Rounded by largest remainder; ties go to the lower class. Each class gets at least one sample if
    ``k`` is at least the number of classes.

    >>> class_quotas(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 4)
    {0: 2, 1: 1, 2: 1}
    """
    classes, sizes = np.unique(labels, return_counts=True)
    exact = k * sizes / sizes.sum()
    quotas = np.floor(exact).astype(np.int64)
    rest = k - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:rest]] += 1
    if k >= len(classes):
        for empty in np.flatnonzero(quotas == 0):
            quotas[quotas.argmax()] -= 1
            quotas[empty] = 1
    return {int(number): int(quota) for number, quota in zip(classes, quotas, strict=True)}


def _settings(
    name: str, method: Method, given: Inputs, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of the method's function, except the seed."""
    unknown = sorted(set(options) - set(method.options))
    if unknown:
        known = (
            f"Expected some of {', '.join(method.options)}." if method.options else "It has none."
        )
        raise TypeError(
            f"select({name!r}) got the option {unknown[0]!r}, which it does not have. {known}"
        )
    settings = dict(options)
    if method.validates and given.validation is not None:
        parts = {need: given.validation.find(need) for need in method.validates}
        _check_given(f"select({name!r}, validation=Inputs(…))", parts)
        settings["validation"] = tuple(parts.values())
    return settings


def _needed(name: str, method: Method, given: Inputs) -> dict[str, Any]:
    values = {need: given.find(need) for need in method.needs}
    _check_given(f"select({name!r})", values)
    return values


def _check_given(call: str, values: Mapping[str, Any]) -> None:
    missing = [need for need, value in values.items() if value is None]
    if missing:
        raise ValueError(
            f"{call} needs {' and '.join(missing)}. Pass {'; '.join(WAYS[need] for need in missing)}; or "
            "inputs=coresets.proxy(model, data), which trains a proxy and returns them."
        )


def _count(name: str, given: Inputs, values: Mapping[str, Any]) -> int:
    """The number of samples, on which all inputs agree."""
    counts = {need: _length(need, value) for need, value in values.items() if need != "model"}
    if given.labels is not None:
        counts["labels"] = len(given.labels)
    if not counts:
        count = given.count()
        if count is None:
            raise ValueError(
                f"select({name!r}) cannot tell the number of samples. Pass labels=…, features=… or data=…."
            )
        return count
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"select({name!r}) got inputs with different numbers of samples: "
            f"{', '.join(f'{need} {length}' for need, length in counts.items())}. Expected the same number of each."
        )
    return next(iter(counts.values()))


def _length(need: str, value: Any) -> int:
    if isinstance(value, Dense | OuterProducts | Dataset):
        return len(value)  # type: ignore[arg-type]
    array = value if isinstance(value, torch.Tensor) else np.asarray(value)
    return int(array.shape[-1] if need in SAMPLES_LAST else array.shape[0])


def _classes(given: Inputs, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    if given.labels is None:
        raise ValueError(
            "select(balanced=True) needs labels, one class per sample. Pass labels=…, or leave balanced "
            "out."
        )
    return as_labels("select()", given.labels, count=count).cpu().numpy()


def _as_ranking(call: str, scores: Array) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = scores.detach().cpu() if isinstance(scores, torch.Tensor) else scores
    ranking = np.asarray(values, np.float32)
    if ranking.ndim != 1 or np.isnan(ranking).any():
        raise ValueError(
            f"{call} got scores of shape {ranking.shape} with {int(np.isnan(ranking).sum())} NaN, expected one "
            "number per sample. A sample without a score cannot be ranked: leave it out."
        )
    return ranking


@dataclass(frozen=True)
class _Choice:
    """A method that chooses a set, with all arguments of its function except ``k``."""

    method: Method
    values: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int

    def of_all(self, count: int, k: int) -> tuple[Indices, Weights]:
        return self._call(self.values, count, k, [self.seed])

    def by_class(
        self, classes: np.ndarray[Any, np.dtype[np.int64]], k: int
    ) -> tuple[Indices, Weights]:
        parts = []
        for number, quota in class_quotas(classes, k).items():
            if not quota:
                continue
            rows = np.flatnonzero(classes == number)
            values = {need: _rows(value, rows) for need, value in self.values.items()}
            inside, weights = self._call(values, len(rows), quota, [self.seed, number])
            # The first choice in each class comes before the second choice in any class.
            parts.append((rows[inside], weights, (np.arange(quota) + 0.5) / quota))
        chosen, weights, places = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(places, kind="stable")
        return chosen[order], weights[order]

    def _call(
        self, values: Mapping[str, Any], count: int, k: int, seed: list[int]
    ) -> tuple[Indices, Weights]:
        given = [count] if self.method.counts else list(values.values())
        seeded = {"seed": seed} if self.method.takes_seed else {}
        result = self.method.function(*given, k, **self.settings, **seeded)
        return result if isinstance(result, tuple) else (result, np.ones(k, np.float32))


def _rows(value: Any, rows: Indices) -> Any:
    numbers = torch.from_numpy(rows)
    return value.take(numbers) if isinstance(value, Dense | OuterProducts) else value[numbers]
