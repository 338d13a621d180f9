"""Drawing from bins that each cover the data: Dataset Quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from infobatch.coresets.chance import Indices
from infobatch.coresets.checks import Array, check_k
from infobatch.coresets.submodular import graph_cut
from infobatch.coresets.vectors import Vectors, as_vectors

BINS = 10


def dataset_quantization(
    features: Array | Vectors, k: int, *, bins: int = BINS, trade_off: float = 1.0, seed: Any = 0
) -> Indices:
    """Dataset Quantization: divide the data into bins by graph cut, and draw evenly from each.

    Zhou et al., *Dataset Quantization* (ICCV 2023), the selection that the paper's Table 9 combines with
    InfoBatch. The first bin is the graph cut's choice of an n-th of the samples, the second its
    choice from the rest, and so on, so early bins are diverse and late ones dense; the same share
    of each is drawn at random. The paper's last step, which drops patches of images, is not
    included.

    Args:
        features: (samples, numbers), or what :func:`last_layer_gradients` returns.
        k: how many samples to choose.
        bins: n.
        trade_off: λ of the graph cut.
        seed: the key of the draw.

    Returns:
        The indices of the chosen samples.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    call = "dataset_quantization()"
    values = as_vectors(call, "features", features)
    count = len(values)
    k = check_k(call, k, count)
    if bins < 1:
        raise ValueError(f"{call} got bins={bins}, expected an integer >= 1.")
    bins = min(bins, count)
    rng = np.random.default_rng(seed)
    rest = np.arange(count)
    chosen = []
    for number in range(bins):
        size = count * (number + 1) // bins - count * number // bins
        members = rest
        if number + 1 < bins:  # the last bin is the remainder
            of_rest = values.take(torch.from_numpy(rest))
            members = rest[graph_cut(of_rest, size, trade_off=trade_off)]
        share = round(k * len(members) / len(rest))
        chosen.append(rng.permutation(members)[:share])
        k -= share
        rest = np.setdiff1d(rest, members)
    return np.concatenate(chosen)
