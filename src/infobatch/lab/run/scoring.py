"""Scoring a task's training set without gradients, into a file that an arm can start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from infobatch.lab.run.data import data_of, seed_everything, to_device
from infobatch.lab.run.settings import settings_of
from infobatch.lab.task import Task, TaskError
from infobatch.memory.export import COST, INDEX, write_table
from infobatch.memory.memory import SCORE
from infobatch.savings import FORWARD
from infobatch.scores import score


def score_task(
    task: Task, out: Path, *, checkpoint: Path | None, proxy: bool, smoke: bool, seed: int
) -> tuple[int, float]:
    """Write the scores of the task's training set; return their number and cost in steps."""
    settings = settings_of(task, arm="full", seed=seed, smoke=smoke)
    seed_everything(seed)
    train, _ = data_of(task, settings)
    model, share = _model(task, proxy)
    if checkpoint is not None:
        _load(model, checkpoint)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def losses(model: nn.Module, batch: Any) -> Any:
        return task.losses(model, to_device(batch, device))

    scores = score(
        model.to(device),
        train,
        losses,
        batch_size=settings.batch_size,
        collate=task.collate,
        num_workers=task.num_workers,
    ).numpy()
    cost = np.full(len(scores), FORWARD * share, np.float32)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table("score", out, {INDEX: np.arange(len(scores)), SCORE: scores, COST: cost})
    return len(scores), float(cost.sum())


def _model(task: Task, proxy: bool) -> tuple[nn.Module, float]:
    """The scoring model, and its size relative to the trained one."""
    model = task.model()
    if not proxy:
        return model, 1.0
    if task.proxy is None:
        raise TaskError(
            f"--proxy got the task {task.name}, which defines none. Expected a function proxy() in "
            "addition to model(), which returns a smaller model that losses() also accepts."
        )
    smaller = task.proxy()
    return smaller, _parameters(smaller) / max(_parameters(model), 1)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _load(model: nn.Module, path: Path) -> None:
    """Load a state dict, or a checkpoint that has one under ``model``; nothing in it can run code."""
    if not path.is_file():
        raise TaskError(
            f"--checkpoint got {path}, which does not exist. Expected a file of weights."
        )
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        model.load_state_dict(state.get("model", state))
    except Exception as error:  # of many types, since a file can be wrong in many ways
        raise TaskError(
            f"--checkpoint got {path}, which does not fit the model ({type(error).__name__}: {error}). "
            "Expected torch.save(model.state_dict(), path), or a dictionary with that under 'model'."
        ) from error
