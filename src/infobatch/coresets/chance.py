"""The baseline that every method has to beat: a uniform draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.coresets.checks import check_k

Indices = npt.NDArray[np.int64]


def random(num_samples: int, k: int, *, seed: Any = 0) -> Indices:
    """Draw ``k`` of the samples, each subset with the same probability.

    *Random* of the paper's Table 1.

    Args:
        num_samples: how many samples there are.
        k: how many samples to choose.
        seed: the key of the draw.

    Returns:
        The indices of the chosen samples.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> random(10, 3, seed=0).tolist()
    [4, 6, 2]
    """
    k = check_k("random()", k, num_samples)
    return np.random.default_rng(seed).permutation(num_samples)[:k]
