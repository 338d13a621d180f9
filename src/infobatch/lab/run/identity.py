"""Whether runs were made with the same settings, and may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infobatch.lab.recipes.registry import RECIPES


def hash_of_task(task: str) -> str | None:
    """What tells two texts of a user's own file apart; None for a recipe."""
    return None if task in RECIPES else hash_of(Path(task))


def hash_of(path: Path) -> str:
    """What tells two texts of a file apart. What the file imports is not looked at."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def hash_of_settings(settings: Mapping[str, Any]) -> str:
    """What tells two settings apart, short enough for the name of a file."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def what_differs(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Name the settings that differ between what is stored and what is wanted; empty if none does.

    Those that an earlier version did not store yet are not compared.
    """
    differences = {
        name: f"{name} = {stored[name]!r} there, {value!r} here"
        for name, value in wanted.items()
        if name in stored and stored[name] != value
    }
    if "task_hash" in differences:
        differences["task_hash"] = "the text of the task's file has changed"
    if "rule_hash" in differences:
        differences["rule_hash"] = "the text of the rule's file has changed, or the scores have"
    return "; ".join(differences.values())
