"""Checks of what the mixin does not support, before anything is trained."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch.utils.data import IterableDataset


def check_arguments(args: Any) -> None:
    """Check the training arguments.

    Args:
        args: The Trainer's ``TrainingArguments``.

    Raises:
        ValueError: If one of them is incompatible with pruned epochs.
    """
    if args.train_sampling_strategy != "random":
        raise ValueError(
            f"InfoBatchTrainer got train_sampling_strategy={args.train_sampling_strategy!r}, expected "
            "'random': the pruner decides which samples an epoch visits, and in which order."
        )
    if args.ignore_data_skip:
        raise ValueError(
            "InfoBatchTrainer got ignore_data_skip=True, expected False: an epoch is resumed where it "
            "stopped, and skipping what was done reads no data."
        )
    for option in ("packing", "padding_free"):  # TRL's
        if getattr(args, option, False):
            raise ValueError(
                f"InfoBatchTrainer got {option}=True, expected False: it puts several sequences into "
                "one row, whose losses cannot be separated there. Train with padding, or without "
                "pruning."
            )
    if args.n_gpu > 1:
        raise ValueError(
            f"InfoBatchTrainer got {args.n_gpu} GPUs in one process (torch.nn.DataParallel), expected "
            "one per process. Start the script with torchrun, or set CUDA_VISIBLE_DEVICES."
        )


def check_dataset(dataset: Any) -> None:
    """Check the training data.

    Args:
        dataset: The Trainer's ``train_dataset``.

    Raises:
        TypeError: If it has no length, or is not read by index.
    """
    readable = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not readable:
        raise TypeError(
            f"InfoBatchTrainer(train_dataset=…) got {type(dataset).__name__}, expected a data set with "
            "a length that is read by index: pruning chooses which samples to read. Load the stream "
            "into a datasets.Dataset or a list first."
        )


def check_interface(trainer: type, mixin: type) -> None:
    """Check that the Trainer's methods are still those that the mixin overrides.

    Raises:
        ImportError: If one is missing or takes other arguments.
    """
    check_overridden("transformers", trainer, mixin, _OVERRIDDEN)


def check_overridden(package: str, trainer: type, mixin: type, names: Iterable[str]) -> None:
    """Check that a trainer has these methods, with the arguments of the mixin's.

    Args:
        package: The name of the package that the trainer is from.
        trainer: The trainer class.
        mixin: The class whose methods replace the trainer's.
        names: The names of the methods.

    Raises:
        ImportError: If one is missing or takes other arguments.
    """
    for name in names:
        ours = list(inspect.signature(getattr(mixin, name)).parameters)
        theirs = getattr(trainer, name, None)
        if theirs is None or list(inspect.signature(theirs).parameters) != ours:
            raise ImportError(
                f"infobatch.integrations.{package} found a {package} whose {trainer.__name__}.{name} is "
                f"not the one it was written for, expected {name}({', '.join(ours)}). Install the version "
                "that infobatch was tested with (its constraints.txt), or a newer infobatch."
            )


_OVERRIDDEN = (
    "_get_train_sampler",
    "_get_dataloader",
    "training_step",
    "compute_loss",
    "set_initial_training_values",
    "create_scheduler",
    "_run_epoch",
    "_finalize_training",
    "_save_optimizer_and_scheduler",
    "_init_training_state",
)
