"""Protection of classes: every epoch keeps at least a given share of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from infobatch.plan import Strata
from infobatch.policies.base import Samples
from infobatch.policies.classes import numbered

_SPREADS = 4.0  # standard deviations of a draw by which the bound is kept


def protect_classes(strata: Strata, samples: Samples, least: float) -> Strata:
    """Keep at least a share ``least`` of each class.

    Of a class that would fall below it, some randomly chosen samples are always kept, with weight
    1. Because the choice does not depend on anything about the samples, the weights of the others
    do not change, nor does the expected gradient.
    """
    assert samples.labels is not None
    classes, number = numbered(samples.labels)
    counts = _to_keep(np.array([1.0, *strata.keep])[strata.labels], classes, number, least)
    if not counts.any():
        return strata
    members = np.flatnonzero(counts[classes] > 0)
    chances = samples.rng().random(len(members), dtype=np.float32)
    members = members[np.lexsort((chances, classes[members]))]  # by class, in random order within
    member_class = classes[members]
    class_start = np.searchsorted(member_class, np.arange(number))
    place_in_class = np.arange(len(members)) - class_start[member_class]
    protected = members[place_in_class < counts[member_class]]
    labels = strata.labels.copy()
    labels[protected] = 0
    return replace(strata, labels=labels)


def _to_keep(
    kept: npt.NDArray[np.float64], classes: npt.NDArray[np.integer], number: int, least: float
) -> npt.NDArray[np.int64]:
    """How many of each class to keep with certainty, given the samples' keep probabilities."""
    sizes = np.maximum(np.bincount(classes, minlength=number), 1)
    expected = np.bincount(classes, weights=kept, minlength=number) / sizes
    drawn = np.bincount(classes, weights=kept * (1 - kept), minlength=number)
    enough = expected - _SPREADS * np.sqrt(drawn) / sizes >= least
    # Some of these samples would have been kept anyway, which adds to the spread of the draw.
    spread = np.sqrt(np.maximum(expected * (1 - expected), 0) / sizes)
    missing = np.where(enough | (expected >= 1), 0.0, least + _SPREADS * spread - expected)
    wanted = np.ceil(sizes * missing / np.maximum(1 - expected, 1e-12))
    return np.clip(wanted, 0, sizes).astype(np.int64)
