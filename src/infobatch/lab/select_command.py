"""The command ``infobatch select``: choose a subset, write it, and a page about it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import Dataset

from infobatch.coresets import METHODS, Coreset, select_from_scores
from infobatch.lab.commands import check_data, check_file, plain_errors
from infobatch.lab.options import parse_options, value_of
from infobatch.lab.report.selection_page import SelectionPage, cost_in_words
from infobatch.lab.run.coreset_spec import CoresetSpec
from infobatch.lab.run.data import data_of, seed_everything
from infobatch.lab.run.identity import hash_of_task
from infobatch.lab.run.selection import Selection
from infobatch.lab.run.settings import settings_of
from infobatch.lab.task import Task, load_task


@dataclass(frozen=True)
class Request:
    """The command's arguments."""

    method: str
    task: str | None
    fraction: float
    scores: Path | None
    column: str | None
    balanced: bool | None
    seed: int
    networks: int
    proxy_epochs: int | None
    option: list[str]  # of the method
    recipe: list[str]  # options of the recipe
    data: Path | None
    smoke: bool

    @property
    def method_options(self) -> dict[str, Any]:
        """The method's options, as values."""
        return {name: value_of(text) for name, text in parse_options(self.option).items()}

    @property
    def recipe_options(self) -> dict[str, str]:
        """The recipe's options, as strings."""
        return parse_options(self.recipe)

    @property
    def spec(self) -> CoresetSpec:
        """What to choose; its text distinguishes two choices."""
        parts = [f"{self.method}@{self.fraction:g}", *sorted(self.option)]
        if self.networks > 1:
            parts.append(f"networks={self.networks}")
        if self.proxy_epochs is not None:
            parts.append(f"proxy_epochs={self.proxy_epochs}")
        if self.balanced is not None:
            parts.append(f"balanced={self.balanced}")
        return CoresetSpec(
            text=":".join(parts),
            method=self.method,
            fraction=self.fraction,
            networks=self.networks,
            proxy_epochs=self.proxy_epochs,
            balanced=self.balanced,
            options=self.method_options,
        )

    def check(self) -> None:
        """Raise at impossible requests, before anything starts."""
        if self.method not in METHODS:
            raise ValueError(
                f"There is no method {self.method!r}. Expected one of {', '.join(METHODS)}."
            )
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"--fraction got {self.fraction:g}, expected a share above 0 and up to 1: 0.3 prunes 70%."
            )
        if self.task is None and self.scores is None:
            raise ValueError(
                f"infobatch select {self.method} needs something to choose from: a recipe's name, a "
                "Python file of your own, or --scores FILE, as export_scores() writes it."
            )
        if self.scores is not None and not self.scores.is_file():
            raise ValueError(f"--scores got {self.scores}, which is not a file.")
        check_data(self.data)
        known = METHODS.entries[self.method].options
        for name in self.method_options:
            if name not in known:
                has = ", ".join(known) or "none"
                raise ValueError(f"{self.method} has no option {name!r}. It has {has}.")


@dataclass(frozen=True)
class Found:
    """A coreset, and what its page can show about the samples."""

    chosen: Coreset
    labels: Any = None
    class_names: Any = ()
    show: Callable[[int], Any] | None = None


def select(request: Request, out: Path | None) -> None:
    """Choose, and write the indices, the weights and the page."""
    console = Console()
    with plain_errors():
        request.check()
        path = out or Path(f"{request.method}-{request.fraction:g}.npz")
        check_file(path)
        selection = (
            _from_scores(request) if request.scores is not None else _from_task(request, path)
        )
        selection.chosen.save(path)
        page = path.with_suffix(".html")
        SelectionPage(
            chosen=selection.chosen,
            source=str(request.scores or request.task),
            command=shlex.join(["infobatch", *sys.argv[1:]]),
            labels=selection.labels,
            class_names=selection.class_names,
            show=selection.show,
        ).write(page)
        count = f"{len(selection.chosen):,} of {selection.chosen.num_samples:,} samples"
        words = f"{count}, chosen by {request.method}. {cost_in_words(selection.chosen)}"
        console.print(f"{words} Wrote {path} and {page}", soft_wrap=True, highlight=False)


def _from_task(request: Request, path: Path) -> Found:
    assert request.task is not None
    task = load_task(
        request.task, data=request.data, smoke=request.smoke, options=request.recipe_options
    )
    settings = settings_of(
        task,
        arm="full",
        seed=request.seed,
        smoke=request.smoke,
        options=request.recipe_options,
        task_hash=hash_of_task(request.task),
    )
    seed_everything(request.seed)
    data, _ = data_of(task, settings)
    folder = (
        path.parent / f"selections-{Path(request.task).stem}{'-smoke' if request.smoke else ''}"
    )
    return Found(
        Selection(task, data, request.spec, settings, folder, progress=True).chosen(),
        labels=None if task.labels is None else task.labels(data),
        class_names=task.class_names,
        show=_shown(task, data),
    )


def _from_scores(request: Request) -> Found:
    """Choose by a column of a file; a task, if given, adds classes and pictures."""
    assert request.scores is not None
    task, data, labels = None, None, None
    if request.task is not None:
        task = load_task(
            request.task, data=request.data, smoke=request.smoke, options=request.recipe_options
        )
        data, _ = data_of(task, settings_of(task, arm="full", seed=0, smoke=request.smoke))
        labels = None if task.labels is None else task.labels(data)
    chosen = select_from_scores(
        request.scores,
        request.method,
        fraction=request.fraction,
        column=request.column,
        labels=labels,
        balanced=labels is not None if request.balanced is None else request.balanced,
        seed=request.seed,
        **request.method_options,
    )
    if task is None or data is None:
        return Found(chosen)
    return Found(chosen, labels, task.class_names, _shown(task, data))


def _shown(task: Task, data: Dataset[Any]) -> Callable[[int], Any] | None:
    show = task.show
    return None if show is None else lambda index: show(data, index)
