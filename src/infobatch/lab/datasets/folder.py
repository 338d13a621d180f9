"""The user's data folder, given by argument or by environment variable."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "INFOBATCH_DATA"


def data_folder(given: Path | None) -> Path | None:
    """The folder given by argument or by environment variable."""
    named = os.environ.get(DATA_VARIABLE)
    return given or (Path(named) if named else None)


def require_data(folder: Path | None, name: str, remedy: str) -> Path:
    """Return the path of a data set in the user's folder, or raise an error with how to get it."""
    where = (
        f"{folder}" if folder is not None else f"no folder named (--data DIR or ${DATA_VARIABLE})"
    )
    if folder is None or not (folder / name).exists():
        raise FileNotFoundError(f"The data set {name!r} is missing: {where}. {remedy}")
    return folder / name
