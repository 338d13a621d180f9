"""A run's data: its part of the task's data, and moving batches to the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, random_split

from infobatch.lab.run.settings import RunSettings
from infobatch.lab.smoke import SMOKE_TEST, SMOKE_TRAIN
from infobatch.lab.task import Task, TaskError, size_of

VALIDATION_SHARE = 0.2


def data_of(task: Task, settings: RunSettings) -> tuple[Dataset[Any], Dataset[Any]]:
    """The data that a run trains on, and the data that it is evaluated on."""
    sets = task.data() if task.data_of_seed is None else task.data_of_seed(settings.seed)
    if not isinstance(sets, tuple | list) or len(sets) != 2:
        raise TaskError(f"{task.name}: data() must return two data sets (train, test).")
    train, test = sets
    train_size, test_size = size_of(task.name, train), size_of(task.name, test)
    if settings.smoke:
        train = Subset(train, range(min(SMOKE_TRAIN, train_size)))
        test = Subset(test, range(min(SMOKE_TEST, test_size)))
    if settings.validation:  # the same split for every arm, but a different one for each seed
        generator = torch.Generator().manual_seed(settings.seed)
        train, test = random_split(train, [1 - VALIDATION_SHARE, VALIDATION_SHARE], generator)
    return train, test


def seed_everything(seed: int) -> None:
    """Seed all random generators that a task may use."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a user's task may use numpy's global generator


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch of tensors in tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def part_of(batch: Any, index: torch.Tensor, size: int) -> Any:
    """The samples at these positions of a collated batch of ``size``, whatever its structure."""
    if isinstance(batch, torch.Tensor) and batch.dim():
        if len(batch) != size:
            raise TaskError(
                f"The arm stream takes a part of each batch. It got a tensor of shape "
                f"{tuple(batch.shape)} in a batch of {size} samples, expected one row per sample. "
                "Collate such data into tensors with a row for each sample, or leave the arm out."
            )
        return batch[index.to(batch.device)]
    if isinstance(batch, dict):
        return {name: part_of(value, index, size) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        if len(batch) == size and all(isinstance(entry, str | int | float) for entry in batch):
            return type(batch)(batch[place] for place in index.tolist())
        parts = [part_of(value, index, size) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
