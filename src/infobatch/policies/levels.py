"""Rounding of many keep probabilities to the few strata of a plan."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from infobatch.plan import Strata
from infobatch.plan.strata import MAX_STRATA

Array = npt.NDArray[np.float64]

_LEAST = 32  # samples in a stratum: with fewer, rounding moves the share too far
_TOLERANCE = 1.05  # within it of the noise, strata keep their mean share
_BLOCK = 1 << 17  # samples at a time: indices take eight bytes each


def strata_of_cells(
    cells: npt.NDArray[Any],
    keep: Array,
    counts: Array,
    weights: Literal["inverse", "ones"] = "inverse",
    squares: Array | None = None,
) -> Strata:
    """Build strata from ``cells``, each with ``counts`` samples and a share ``keep`` to keep.

    Cells with similar shares become one stratum, which keeps their mean share. If the samples are few,
    a stratum's cells may differ so much that this adds more noise than their own shares would. With
    ``squares``, Σ g² of each cell, such strata keep as many samples as add no more. ``counts`` and
    ``squares`` are those of all ranks, so that the strata are the same on each.
    """
    label = np.zeros(len(keep), np.uint8)
    pruned = np.flatnonzero((keep < 1) & (counts > 0))
    if not len(pruned):
        return Strata(look_up(label, cells), (), weights)
    pruned = pruned[np.argsort(keep[pruned], kind="stable")]
    sizes = counts[pruned]
    size = max(_LEAST, -(-float(sizes.sum()) // (MAX_STRATA - 1)))
    before = np.concatenate([[0.0], np.cumsum(sizes)[:-1]])
    label[pruned] = (1 + before // size).astype(np.uint8)
    kept = np.bincount(label[pruned], weights=sizes * keep[pruned])[1:]
    members = np.bincount(label[pruned], weights=sizes)[1:]
    shares = np.divide(kept, members, out=np.ones_like(kept), where=members > 0)
    if squares is not None:
        of_level = np.bincount(label[pruned], weights=squares[pruned])[1:]
        allowed = np.bincount(label[pruned], weights=squares[pruned] / keep[pruned])[1:]
        drawn_shares = np.maximum(np.round(shares * members), 1) / np.maximum(
            members, 1
        )  # whole samples
        noise = max(float(of_level @ (1 / shares - 1)), float(of_level @ (1 / drawn_shares - 1)))
        if noise > _TOLERANCE * float((allowed - of_level).sum()):
            np.divide(of_level, allowed, out=shares, where=of_level > 0)
            kept_counts = np.ceil(np.round(shares * members, 6))
            np.divide(kept_counts, members, out=shares, where=members > 0)
    return Strata(look_up(label, cells), tuple(shares.tolist()), weights)


def look_up(table: npt.NDArray[np.uint8], cells: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return ``table[cells]``, computed a block at a time."""
    labels = np.empty(len(cells), np.uint8)
    for start in range(0, len(cells), _BLOCK):
        block = slice(start, start + _BLOCK)
        np.take(table, cells[block], out=labels[block], mode="clip")
    return labels
