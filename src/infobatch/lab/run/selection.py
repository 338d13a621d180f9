"""The subset that a run trains on: chosen once, kept in a file, and shared between runs.

The proxy is the task's own network, trained as in the task, for a fifth of the epochs, or for a
twentieth if a method needs only early scores. Its checkpoint is kept with the subsets, so that
several methods share one proxy. Every run that uses a subset counts the full cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from infobatch import coresets
from infobatch.files import write_atomically
from infobatch.lab.run.coreset_spec import CoresetSpec
from infobatch.lab.run.data import to_device
from infobatch.lab.run.identity import hash_of_settings, what_differs
from infobatch.lab.run.settings import RunSettings
from infobatch.lab.stats.runs import Costs
from infobatch.lab.task import Task, TaskError

EARLY = ("el2n", "grand", "ccs")  # methods that use scores from early in training
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Selection:
    """A subset of a task's training set, chosen with the settings of a run."""

    task: Task
    data: Dataset[Any]
    spec: CoresetSpec
    settings: RunSettings
    folder: Path
    progress: bool | Progress = False

    def chosen(self) -> coresets.Coreset:
        """The subset; read from the folder if it was chosen before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = self.spec.text
        name = "".join(letter if letter.isalnum() or letter in ".=@-" else "_" for letter in text)
        path = self.folder / f"{name}-{self._place}.npz"
        with _alone(self.folder / f"{self._proxy_name}.lock"):  # for all subsets of one proxy
            if path.exists():
                return _read(path, self._identity())
            try:
                coreset = self._choose()
            except ValueError as error:
                raise TaskError(f"{self.task.name}, {text}: {error}") from error
            _write(path, coreset, self._identity())
        return coreset

    @property
    def _proxy_epochs(self) -> tuple[int, int]:
        """The proxy's number of epochs, and the epoch after which early scores are taken."""
        early = max(1, round(self.settings.epochs / 20))
        if self.spec.method in EARLY:
            epochs = self.spec.proxy_epochs or early
            return epochs, epochs
        epochs = self.spec.proxy_epochs or max(2, round(self.settings.epochs / 5))
        return epochs, min(early, epochs)

    @property
    def _proxy_name(self) -> str:
        """The proxy's file name without extension, the same for all subsets chosen with it."""
        epochs, early = self._proxy_epochs
        settings = hash_of_settings({**self._identity(), "early_epochs": early})
        return f"proxy-{epochs}-{self.spec.networks}-{self._place}-{settings}"

    @property
    def _place(self) -> str:
        """The part that distinguishes the files of a folder."""
        return f"{self.settings.seed}{'-validation' if self.settings.validation else ''}"

    def _identity(self) -> dict[str, Any]:
        names = ("task", "epochs", "batch_size", "smoke", "options", "task_hash")
        known = {name: getattr(self.settings, name) for name in names}
        return {**known, "num_samples": len(self.data)}  # type: ignore[arg-type]

    def _choose(self) -> coresets.Coreset:
        task, spec = self.task, self.spec
        labels = None if task.labels is None else task.labels(self.data)
        inputs = coresets.Inputs(labels=labels, data=self.data)
        if coresets.METHODS.entries[spec.method].needs:
            if labels is None:
                raise TaskError(
                    f"{task.name}: {spec.method} needs the classes of the training samples. Define "
                    "labels(data), one class number per sample; without them, use coreset:random."
                )
            inputs = self._proxy(labels)
        if spec.method == "deepfool":
            inputs = _as_the_model_sees_it(task, inputs)
        return coresets.select(
            spec.method,
            fraction=spec.fraction,
            inputs=inputs,
            balanced=labels is not None if spec.balanced is None else spec.balanced,
            seed=self.settings.seed,
            **spec.options,
        )

    def _proxy(self, labels: Sequence[int]) -> coresets.Inputs:
        task, spec = self.task, self.spec
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        epochs, early = self._proxy_epochs

        return coresets.proxy(
            lambda: task.model().to(device),
            self.data,
            epochs=epochs,
            networks=spec.networks,
            early_epochs=early,
            batch_size=self.settings.batch_size,
            labels=labels,
            losses=lambda model, batch: task.losses(model, to_device(batch, device)),
            look=task.evaluate,
            # The task's own rate, not the arm's: the subset must not depend on the arm.
            optimizer=lambda model: task.optimizer(model, task.learning_rate),
            schedule=task.schedule,
            collate=task.collate,
            num_workers=task.num_workers,
            seed=self.settings.seed,
            checkpoint=self.folder / f"{self._proxy_name}.pt",
            progress=self.progress,
        )


def _as_the_model_sees_it(task: Task, inputs: coresets.Inputs) -> coresets.Inputs:
    """The samples as the task's evaluation passes them to the model, at the cost of a pass."""
    assert inputs.model is not None
    assert inputs.data is not None
    began, cpu = time.perf_counter(), time.process_time()
    seen: list[torch.Tensor] = []

    def note(_: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append(given[0].detach().cpu())

    hook = inputs.model.register_forward_pre_hook(note)
    try:
        task.evaluate(inputs.model, inputs.data)
    finally:
        hook.remove()
    data = TensorDataset(torch.cat(seen))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    spent = coresets.Cost(seconds, samples_forwarded=len(data), cpu_seconds=cpu_seconds)
    return inputs.updated({"data": data, "cost": inputs.cost + spent})


# Files.


def _write(path: Path, chosen: coresets.Coreset, identity: dict[str, Any]) -> None:
    about = {"method": chosen.method, "cost": asdict(chosen.cost), "identity": identity}
    arrays = {
        "index": chosen.indices,
        "weight": chosen.weights,
        "about": np.array(json.dumps(about)),
    }
    if chosen.scores is not None:
        arrays["scores"] = chosen.scores

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    write_atomically(path, save)


def _read(path: Path, identity: dict[str, Any]) -> coresets.Coreset:
    with np.load(path, allow_pickle=False) as stored:
        about = json.loads(str(stored["about"]))
        differing = what_differs(about["identity"], identity)
        if differing:
            raise TaskError(
                f"{path} was chosen with different settings: {differing}. Choose another --out, or delete it."
            )
        return coresets.Coreset(
            indices=stored["index"],
            weights=stored["weight"],
            method=about["method"],
            cost=coresets.Cost(**about["cost"]),
            num_samples=about["identity"]["num_samples"],
            scores=stored.get("scores"),
        )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process choose at a time, so that the others find what it chose.

    If the system has no such locks, each process chooses separately, with the same result.
    """
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the process, however it ends
        yield


def charge(costs: Costs, spent: coresets.Cost) -> None:
    """Add the selection to a run's costs, in training passes."""
    costs.samples_forwarded += spent.passes
    costs.samples_backpropagated += spent.samples_backpropagated
    costs.seconds += spent.seconds
    if costs.cpu_seconds is not None:
        costs.cpu_seconds += spent.cpu_seconds
    costs.selection_seconds += spent.seconds
    costs.selection_passes += spent.passes
