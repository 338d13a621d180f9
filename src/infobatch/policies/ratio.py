"""The check that every prune ratio passes."""

from __future__ import annotations

import numpy as np


def check_ratio(argument: str, ratio: object) -> None:
    """Refuse a prune ratio outside [0, 1); ``argument`` is how the user spelled it."""
    if not isinstance(ratio, int | float | np.floating) or not 0 <= ratio < 1:
        raise ValueError(
            f"{argument} got {ratio!r}, expected a share in [0, 1): 0 prunes nothing, 0.5 is the "
            "paper's default, and 1 would leave no sample to carry the weight of the pruned ones."
        )
