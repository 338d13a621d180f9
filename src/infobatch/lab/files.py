"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it into place.

    The bytes are on the disk before the new name is, else a power cut could leave the name with
    nothing behind it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows has no such call and needs none
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:  # a file system that cannot: the rename is as safe as it gets there
        pass
    finally:
        os.close(descriptor)


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file; one that is damaged is named, with what to do about it."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:  # neither text nor JSON
        raise ValueError(f"{path} is damaged and cannot be read ({error}). {remedy}") from error
