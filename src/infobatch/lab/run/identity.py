"""Checks that runs have the same settings, and may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infobatch.lab.recipes.registry import RECIPES


def hash_of_task(task: str) -> str | None:
    """A hash of a user's task file; None for a recipe."""
    return None if task in RECIPES else hash_of(Path(task))


def hash_of(path: Path) -> str:
    """A hash of a file, without what the file imports."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def hash_of_settings(settings: Mapping[str, Any]) -> str:
    """A hash of settings, short enough for a file name."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def what_differs(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Name the settings that differ between ``stored`` and ``wanted``; empty if none does.

    Settings that an earlier version did not store are not compared.
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
