"""Atomic file writing: a file is written completely or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it into place.

    This does not wait for the disk (fsync), which could stall training while others write. After a
    power cut a file may be damaged, which its reader reports.

    Args:
        path: the file; its folder is made if there is none.
        write: writes the path that it is called with.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not with tempfile, whose files only the owner may read.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
