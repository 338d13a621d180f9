"""The classes of samples as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 1 << 14  # labels below it are used as they are; others are numbered again


def numbered(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """The class of each sample as a number that counts from 0, and how many numbers there are."""
    if labels.dtype.kind in "iu" and int(labels.min()) >= 0 and int(labels.max()) < _MOST:
        return labels, int(labels.max()) + 1
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers, len(names)
