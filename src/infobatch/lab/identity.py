"""Whether runs are of the same making, and may stand in one comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infobatch.lab.recipes import RECIPES


def hash_of(task: str) -> str | None:
    """What tells two texts of a user's own file apart; None for a recipe.

    What the file imports is not looked at.
    """
    if task in RECIPES:
        return None
    return hashlib.sha256(Path(task).read_bytes()).hexdigest()[:16]


def what_differs(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Name the settings that differ between what is stored and what is wanted; empty if none does.

    Those that an earlier version did not store yet are not compared.
    """
    told = {
        name: f"{name} = {stored[name]!r} there, {value!r} here"
        for name, value in wanted.items()
        if name in stored and stored[name] != value
    }
    if "task_hash" in told:
        told["task_hash"] = "the text of the task's file has changed"
    return "; ".join(told.values())
