"""How a policy adds numbers up over the ranks, where each has only its share of the scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Reduce = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


def alone(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum over the ranks where there is one."""
    return values
