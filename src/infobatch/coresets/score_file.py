"""A coreset from the columns of a score file, as an ordinary training run exports it."""

from __future__ import annotations

import re
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from infobatch.coresets.base import select
from infobatch.coresets.checks import Array
from infobatch.coresets.coreset import Coreset
from infobatch.coresets.dynamics import dyn_unc
from infobatch.coresets.registry import find_method
from infobatch.memory.export import INDEX, Table, read_table

DRAWN = ("random", "ccs")  # these do not rank by a column


def select_from_scores(
    path: str | PathLike[str],
    method: str,
    *,
    fraction: float,
    column: str | None = None,
    labels: Array = None,
    balanced: bool = False,
    seed: int = 0,
    **options: Any,
) -> Coreset:
    """Choose by a column of a file written by ``export_scores``, the highest values first.

    Dyn-Unc also reads a window of the last scores (``window_0``, ``window_1``, …), which must be cross-entropies, so
    that exp(−score) is the probability of the label. CCS takes any column as its measure of
    difficulty, ``el2n`` or else ``score`` by default.

    Args:
        path: the file.
        method: the name of a method that ranks samples, or ``"ccs"`` or ``"random"``.
        fraction: the share of the samples to choose, in (0, 1].
        column: any column of the file, such as ``score``, the last loss; by default the one with the method's
            name (``forgetting``, ``el2n``, ``dyn_unc``, …).
        labels: the class of each sample; by default the file's column ``label``, if it has one.
        balanced: each class keeps the same share.
        seed: matters for methods that draw.
        **options: further settings of the method's function.

    Returns:
        The chosen samples, as :func:`select` returns them.

    Raises:
        ValueError: if the method needs more than a column of scores, or the file lacks the column.
    """
    call = f"select_from_scores({str(path)!r}, {method!r})"
    known = find_method(method)
    table = _in_order(call, read_table(call, Path(path)))
    if not known.ranks and method not in DRAWN:
        raise ValueError(
            f"{call}: {method} chooses by {' and '.join(known.needs)}, which a file of scores lacks. Use a "
            "method that ranks samples, or select() with the inputs that it needs."
        )
    classes = table.get("label") if labels is None else labels
    shared: dict[str, Any] = {"fraction": fraction, "balanced": balanced, "seed": seed, **options}
    if classes is not None:
        shared["labels"] = np.asarray(classes).astype(np.int64)
    if method == "random":
        return select(method, scores=np.zeros(len(table[INDEX])), **shared)  # their number
    scores = _column(call, table, method, column)
    if method == "ccs":
        return select(method, scores=scores, **shared)
    # Ranking by given scores is what EL2N does with the norms of one network.
    return replace(select("el2n", error_norms=scores, **shared), method=method)


def _in_order(call: str, table: Table) -> Table:
    """The columns in sample order; no sample may be missing."""
    if INDEX not in table:
        raise ValueError(
            f"{call}: the file has the columns {sorted(table)}, expected {INDEX!r} and columns of scores, "
            "as export_scores() writes them."
        )
    index = table[INDEX].astype(np.int64)
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(len(index))):
        raise ValueError(
            f"{call}: the file has {len(index)} rows for the samples {index.min()} to {index.max()}, "
            "expected one for each sample, counted from 0. If each rank wrote its own file, concatenate them."
        )
    return {name: values[order] for name, values in table.items()}


def _column(call: str, table: Table, method: str, column: str | None) -> np.ndarray[Any, Any]:
    usual = ["el2n", "score"] if method == "ccs" else [method]
    wanted = usual if column is None else [column]
    for name in wanted:
        if name in table:
            return _finite(call, name, table[name])
    window = sorted((name for name in table if re.fullmatch(r"window_\d+", name)), key=_number)
    if method == "dyn_unc" and column is None and len(window) > 1:
        history = np.stack([_finite(call, name, table[name]) for name in window])
        return np.asarray(dyn_unc(np.exp(-history)))
    raise ValueError(
        f"{call}: the file has no column {wanted[0]!r}, it has {sorted(set(table) - {INDEX})}. Name the one "
        "to choose by: column=…, or --column at the command line."
    )


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])


def _finite(call: str, name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    missing = ~np.isfinite(values.astype(np.float64))
    if missing.any():
        raise ValueError(
            f"{call}: {int(missing.sum())} of {len(values)} samples have no {name}, the first is sample "
            f"{int(missing.argmax())}. A sample that was never visited cannot be ranked: export after an "
            "epoch on all data."
        )
    return values.astype(np.float64)
