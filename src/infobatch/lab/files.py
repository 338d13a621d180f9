"""Reading the files of a comparison, which may be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file; if it is damaged, the error names it and the remedy."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:  # neither text nor JSON
        raise ValueError(f"{path} is damaged and cannot be read ({error}). {remedy}") from error
