"""The tasks that the lab trains: a recipe, or a user's file with a handful of functions."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import Dataset

from infobatch.lab.datasets.folder import DATA_VARIABLE
from infobatch.lab.recipes.registry import RECIPES, load_recipe
from infobatch.per_sample import PerSample

_IS_A_TASK = "__infobatch_task__"  # marks a user's file among the imported modules


class TaskError(Exception):
    """An error in a task, explained to the user who wrote or chose it."""


def adamw(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """The default optimizer of a task."""
    return torch.optim.AdamW(model.parameters(), learning_rate)


def one_cycle(optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
    """The default schedule of a task: a fifth of the steps up, the rest down to zero."""
    peaks = [group["lr"] for group in optimizer.param_groups]
    steps = max(total_steps, 2)  # torch needs at least two
    share = 0.4 if steps == 5 else 0.2  # a rise that ends at the first step divides by zero
    return OneCycleLR(optimizer, peaks, total_steps=steps, pct_start=share, cycle_momentum=False)


@dataclass(frozen=True)
class Task:
    """One training task. A user's file must define the first six; the rest have defaults.

    ``data()`` returns the training and the test set; ``model()`` a fresh network; ``losses(model,
    batch)`` the batch's per-sample losses (or a ``PerSample`` of ``infobatch.scoring``);
    ``evaluate(model, data)`` the metric on a data set. ``metric`` is its name, and ``margin`` the
    largest drop in it that you would accept, in its own unit, fixed before any run.

    ``unit`` is the word for a difference in the metric, such as ``"points"``. ``counts_items``
    means that the metric is the percentage of test items that the model gets right, so that the
    report can say how much the test set's size matters. ``labels(data)``, ``class_names`` and
    ``show(data, index)`` are also for the report: the class of each training sample, the names of
    classes 0, 1, and so on, and a sample as a string or as an array of pixels.
    ``extra_metrics(model, data)`` returns further metrics of the finished model on the test set.
    ``begin_epoch(epoch)`` is called before each epoch's first batch, and again if a run is resumed
    within the epoch, for augmentation that changes from one epoch to the next.
    ``data_of_seed(seed)`` is used instead of ``data()`` where each seed has its own data.
    ``qualities(model, data)`` returns how good the model is on each sample, from 0 to 1, such as the
    smaller one of precision and recall; the arm ``afss`` needs it.
    ``proxy()`` is a smaller model that ``losses`` also accepts, for ``infobatch score --proxy``.
    """

    name: str
    data: Callable[[], tuple[Dataset[Any], Dataset[Any]]]
    model: Callable[[], nn.Module]
    losses: Callable[[nn.Module, Any], torch.Tensor | PerSample]
    evaluate: Callable[[nn.Module, Dataset[Any]], float]
    metric: str
    margin: float
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] = adamw
    schedule: Callable[[torch.optim.Optimizer, int], LRScheduler] = one_cycle
    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 1e-3
    evaluate_every: int = 1  # epochs; the last one is always evaluated
    num_workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    higher_is_better: bool = True
    unit: str = ""
    counts_items: bool = False
    class_names: Sequence[str] = ()
    labels: Callable[[Dataset[Any]], Sequence[int]] | None = None
    show: Callable[[Dataset[Any], int], Any] | None = None
    extra_metrics: Callable[[nn.Module, Dataset[Any]], dict[str, float]] | None = None
    begin_epoch: Callable[[int], None] | None = None
    data_of_seed: Callable[[int], tuple[Dataset[Any], Dataset[Any]]] | None = None
    proxy: Callable[[], nn.Module] | None = None
    qualities: Callable[[nn.Module, Dataset[Any]], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise TaskError(f"{self.name}: {name} = {value!r}, expected an integer >= 1.")
        for name in ("margin", "learning_rate"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0 or not math.isfinite(value):
                raise TaskError(f"{self.name}: {name} = {value!r}, expected a number above 0.")
        if not isinstance(self.metric, str) or not self.metric:
            raise TaskError(f"{self.name}: metric = {self.metric!r}, expected its name, a string.")


def load_task(
    name: str, *, data: Path | None = None, smoke: bool = False, options: Mapping[str, str] = {}
) -> Task:
    """Find a task by a recipe's name or by the path of a user's file."""
    if name in RECIPES:
        try:
            return as_task(name, load_recipe(name, data=data, smoke=smoke, options=options))
        except (ValueError, FileNotFoundError, ImportError) as error:
            raise TaskError(str(error)) from error
    path = Path(name)
    if path.suffix != ".py":
        raise TaskError(
            f"There is no recipe {name!r}. Expected one of {', '.join(RECIPES)}, or the path of a "
            "Python file with data(), model(), losses() and evaluate()."
        )
    if not path.is_file():
        raise TaskError(f"There is no file {name}. Expected a Python file that defines a task.")
    if options:
        raise TaskError(f"--set works for recipes; {name} is a file: write its settings into it.")
    if data is not None:
        raise TaskError(
            f"--data works for recipes; {name} is a file: write the folder into it, or read it there "
            f"from the environment, os.environ[{DATA_VARIABLE!r}]."
        )
    return as_task(path.stem, import_file(path))


def import_file(path: Path) -> ModuleType:
    """Import a user's file as Python would from the file's folder.

    The folder is added to ``sys.path``, for neighbouring files, and the module to ``sys.modules``,
    where dataclasses look for it and a loader's workers find its classes.
    """
    name, folder = path.stem, str(path.resolve().parent)
    if name in sys.modules and not hasattr(sys.modules[name], _IS_A_TASK):
        raise TaskError(f"{path} has the name of another module, {name!r}. Rename the file.")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, _IS_A_TASK, True)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskError(f"{path} fails on import: {type(error).__name__}: {error}") from error
    return module


def as_task(name: str, source: Any) -> Task:
    """Read a task from a module or an object with its functions and settings as attributes."""
    values = {"name": name}
    for field in fields(Task):
        if field.name != "name" and getattr(source, field.name, None) is not None:
            values[field.name] = getattr(source, field.name)
    missing = [
        field.name if field.name in ("metric", "margin") else f"{field.name}()"
        for field in fields(Task)
        if field.default is MISSING and field.name not in values
    ]
    if missing:
        raise TaskError(
            f"{name} does not define {', '.join(missing)}. Expected data() -> (train, test), model(), "
            "losses(model, batch) -> one loss per sample, evaluate(model, data) -> number, and two "
            'settings: metric, the name of that number, such as "accuracy"; and margin, the largest '
            "drop in it that you would accept, in its own unit: 0.5 for half a point of an accuracy in "
            "percent, 0.005 for the same of a fraction."
        )
    return Task(**values)  # type: ignore[arg-type]


def size_of(name: str, data: Dataset[Any]) -> int:
    """The number of samples of a task's data set."""
    if not isinstance(data, Sized) or not len(data):
        raise TaskError(
            f"{name}: data() returned {type(data).__name__} without samples or without a length. "
            "Expected two map-style data sets (train, test)."
        )
    return len(data)
