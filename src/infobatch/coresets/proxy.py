"""Train a proxy network and return the inputs of the methods."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, Dataset

from infobatch.checks import check_count
from infobatch.coresets.checks import Array
from infobatch.coresets.inputs import Inputs
from infobatch.coresets.proxy_training import (
    Look,
    Losses,
    Progress,
    Settings,
    Training,
    labels_of,
)

EARLY_EPOCHS = 10
_LOOK = 500  # samples at once, without gradients


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    """The losses of a batch (inputs, labels)."""
    inputs, labels = batch
    device = next(model.parameters()).device
    return nn.functional.cross_entropy(
        model(inputs.to(device)), labels.to(device), reduction="none"
    )


def forward_in_order(model: nn.Module, data: Dataset[Any]) -> None:
    """Pass all samples (input, label) through the model, in order."""
    device = next(model.parameters()).device
    for batch in DataLoader(data, _LOOK, generator=torch.Generator()):
        model(batch[0].to(device))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The default optimizer of a proxy: DeepCore's."""
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)


def cosine(optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
    """The default learning-rate schedule of a proxy: a cosine down to zero."""
    return CosineAnnealingLR(optimizer, max(total_steps, 1))


def proxy(
    model: nn.Module | Callable[[], nn.Module],
    data: Dataset[Any],
    *,
    epochs: int = 40,
    networks: int = 1,
    early_epochs: int = EARLY_EPOCHS,
    batch_size: int = 128,
    labels: Array = None,
    validation: Dataset[Any] | None = None,
    head: str | None = None,
    losses: Losses = cross_entropy,
    look: Look = forward_in_order,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    schedule: Callable[[torch.optim.Optimizer, int], LRScheduler] = cosine,
    collate: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    seed: int = 0,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | Progress = True,
) -> Inputs:
    """Train a proxy on all data and return the inputs of the methods, with their cost.

    Args:
        model: a function that builds a network, or a network, which is copied.
        data: samples (input, label); for other data pass ``labels``, ``losses`` and ``look``.
        epochs: how many epochs the first network is trained for.
        networks: how many networks are trained; all but the first stop after ``early_epochs``.
        early_epochs: after how many epochs the norms of errors and gradients are taken.
        batch_size: the number of samples in a batch.
        labels: the class of each sample, if ``data`` does not have it.
        validation: held-out samples, on which the trained network is evaluated: GLISTER and influence use it.
        head: the name of the last linear layer, if it cannot be found.
        losses: ``losses(model, batch)`` returns one loss per sample.
        look: ``look(model, data)`` passes all samples through the model once, in order and unchanged.
        optimizer: ``optimizer(model)`` builds the optimizer.
        schedule: ``schedule(optimizer, steps)`` builds the learning rate's schedule, stepped after each batch.
        collate: the ``collate_fn`` of the loader.
        num_workers: the number of the loader's worker processes.
        seed: of the networks' weights and the order of the samples.
        checkpoint: a file in which the state is saved after each epoch; run the same call again to resume.
        progress: whether to show a progress bar in the terminal, or a function of the share done and a line of
            text.

    Returns:
        ``features`` and ``logits`` of the trained network, the ``history`` of its training, the ``labels``, and
        ``error_norms`` and ``gradient_norms`` (of the last layer) after ``early_epochs``, for each network if
        there are several: EL2N-R and GraNd-R.

    Raises:
        TypeError: if ``networks`` is more than 1 and ``model`` is a network instead of a function.
        ValueError: if a number is below 1, or a checkpoint belongs to other settings.
    """
    for name, value in (("epochs", epochs), ("networks", networks), ("early_epochs", early_epochs)):
        check_count(f"proxy({name}=…)", value, f"it counts {name.replace('_', ' ')}")
    check_count("proxy(batch_size=…)", batch_size, "it counts samples")
    if isinstance(model, nn.Module) and networks > 1:
        raise TypeError(
            f"proxy(networks={networks}) got one network, expected a function that makes a fresh one: an "
            "ensemble of copies would be one network."
        )
    settings = Settings(
        num_samples=len(data),  # type: ignore[arg-type]
        epochs=epochs,
        networks=networks,
        early_epochs=min(early_epochs, epochs),
        batch_size=batch_size,
        seed=seed,
    )
    training = Training(
        make=(lambda: copy.deepcopy(model)) if isinstance(model, nn.Module) else model,
        data=data,
        labels=labels_of(data, labels),
        head=head,
        losses=losses,
        look=look,
        optimizer=optimizer,
        schedule=schedule,
        collate=collate,
        num_workers=num_workers,
        settings=settings,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        progress=_bar if progress is True else progress or _silent,
    )
    with torch.random.fork_rng():  # leave the caller's random state unchanged
        return training.run(validation)


def _bar(share: float, text: str) -> None:
    """Show a bar on one line of the terminal; nothing if the output is not a terminal."""
    if sys.stderr.isatty():
        filled = "█" * round(20 * share)
        print(
            f"\r{filled:░<20} {share:4.0%} {text}", end="" if share < 1 else "\n", file=sys.stderr
        )


def _silent(share: float, text: str) -> None:
    """Show no bar."""
