"""Curves for TensorBoard and Weights & Biases, behind one small interface."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from infobatch.files import write_atomically


class Writer(Protocol):
    """A destination for a run's numbers."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class TensorBoardWriter:
    """Event files in the run's folder: ``tensorboard --logdir DIR``."""

    def __init__(self, folder: Path, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional package

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Finish writing."""
        self._writer.close()


class WandbWriter:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        import wandb  # noqa: PLC0415 - an optional package

        # A resumed run continues as the same one there; its id is kept in the run's folder.
        kept = folder / "wandb-id.txt"
        if not kept.exists():
            write_atomically(kept, lambda path: path.write_text(secrets.token_hex(8)))
        self._run: Any = wandb.init(
            project="infobatch",
            name=name,
            dir=str(folder),
            id=kept.read_text(),
            resume="allow",
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish writing."""
        self._run.finish()


WRITERS: dict[str, type[TensorBoardWriter | WandbWriter]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
}


def check_log(kind: str | None) -> None:
    """Raise at a writer that is unknown or whose package is missing, before anything starts."""
    if kind is None:
        return
    if kind not in WRITERS:
        raise ValueError(f"--log got {kind!r}, expected one of {', '.join(WRITERS)}.")
    if find_spec(kind) is None:
        raise ValueError(f"--log {kind} needs a package that is missing: pip install {kind}.")


def open_writer(kind: str, folder: Path, name: str) -> Writer:
    """Open a writer by its name."""
    check_log(kind)
    return WRITERS[kind](folder, name)


def curves(epoch: Mapping[str, Any], metric: str) -> dict[str, float]:
    """The numbers of an epoch's history, by their names in loggers."""
    numbers = {
        metric: epoch["metric"],
        "train_loss": epoch["train_loss"],
        "learning_rate": epoch["learning_rate"],
        "infobatch/kept_fraction": epoch["kept_fraction"],
        "infobatch/added_noise": epoch.get("added_noise"),  # within the batch there is no estimate
        "infobatch/samples_saved": epoch["samples_saved"],
        "infobatch/threshold": epoch["thresholds"][-1] if epoch["thresholds"] else None,
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}
