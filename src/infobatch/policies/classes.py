"""Class labels as consecutive numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 1 << 14  # smaller labels are used as they are; others are renumbered


def check_classes(labels: npt.NDArray[Any]) -> None:
    """Raise at labels that have no order, such as names of which some are None."""
    kinds = set(map(type, labels)) if labels.dtype.kind == "O" else {str}
    if kinds == {str}:
        return
    try:
        np.unique(labels)
    except TypeError:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            f"labels got values of type {names}, which have no order, expected a name or number for the class of each "
            "sample. Give samples without a class one of their own, such as '' or -1."
        ) from None


def numbered(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """Return each sample's class as a number from 0, and how many such numbers there are."""
    if labels.dtype.kind in "iu" and int(labels.min()) >= 0 and int(labels.max()) < _MOST:
        return labels, int(labels.max()) + 1
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers, len(names)


def compact(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each sample's class as a number from 0, in as few bytes as the numbers need."""
    if not len(labels):
        return np.zeros(0, np.uint8)
    numbers, count = numbered(labels)
    return numbers.astype(np.min_scalar_type(max(count - 1, 0)), copy=False)
