"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it into place.

    The disk is not waited for: a checkpoint could then stop a training for as long as others write. After
    a power cut a file may be damaged, and whoever reads it says so.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file; one that is damaged is named, with what to do about it."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:  # neither text nor JSON
        raise ValueError(f"{path} is damaged and cannot be read ({error}). {remedy}") from error
