"""How long a run is: sample passes in, optimizer steps out."""

from __future__ import annotations

import math


def steps_for(passes: int, *, num_samples: int, batch: int) -> int:
    """The number of optimizer steps on all data that comes nearest to ``passes``, at least one.

    An epoch's last batch may be smaller, so steps are counted epoch by epoch. Multiplying by the
    batch size instead would be far off if an epoch has few batches: with 260 samples in batches of
    256, every second batch has four.

    >>> steps_for(411, num_samples=260, batch=256)  # 260 in two steps, then 256 in one
    3
    """
    whole, rest = divmod(passes, num_samples)
    full_steps = steps_per_epoch(num_samples, batch)
    partial = min(round(rest / batch), full_steps)
    return max(1, whole * full_steps + partial)


def steps_per_epoch(num_samples: int, batch: int) -> int:
    """The optimizer steps of an epoch over all data."""
    return math.ceil(num_samples / batch)
