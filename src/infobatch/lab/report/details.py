"""Files of a run other than results.json: scores and visits by sample, one pruned epoch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Snapshot:
    """The scores at the start of one pruned epoch, and the epoch's plan."""

    epoch: int
    scores: Array
    order: Array
    weights: Array


@dataclass(frozen=True)
class Details:
    """The per-sample data of one run; what a run did not write is None or empty."""

    arm: str
    seed: int
    scores: Array | None = None
    visits: Array | None = None
    labels: Array | None = None
    snapshot: Snapshot | None = None
    easiest: tuple[int, ...] = ()
    hardest: tuple[int, ...] = ()
    samples: Mapping[int, Any] = field(default_factory=dict)


def read_details(folder: Path, *, arm: str, seed: int) -> Details:
    """Read a run's folder; missing and damaged files count as not written."""
    arrays = _read_arrays(folder / "details.npz")
    labels, visits = arrays.get("labels"), arrays.get("visits")
    if labels is not None and (labels.ndim != 1 or visits is None or len(labels) != len(visits)):
        labels = None  # not one class per sample
    return Details(
        arm=arm,
        seed=seed,
        scores=arrays.get("scores"),
        visits=visits,
        labels=labels,
        snapshot=_snapshot(arrays),
        easiest=tuple(arrays["easiest"].tolist()) if "easiest" in arrays else (),
        hardest=tuple(arrays["hardest"].tolist()) if "hardest" in arrays else (),
        samples=_read_samples(folder / "samples.json"),
    )


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file, np.load(file) as stored:
            return dict(stored)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return {}


def _snapshot(arrays: Mapping[str, Array]) -> Snapshot | None:
    names = ("epoch", "scores", "order", "weights")
    if any(f"snapshot_{name}" not in arrays for name in names):
        return None
    epoch, scores, order, weights = (arrays[f"snapshot_{name}"] for name in names)
    return Snapshot(int(epoch), scores, order, weights)


def _read_samples(path: Path) -> dict[int, Any]:
    try:
        stored = json.loads(path.read_text())
        return {int(index): shown for index, shown in stored.items()}
    except (OSError, ValueError, AttributeError):
        return {}
