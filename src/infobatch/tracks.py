"""Tracks: what can be remembered about each sample beyond its last score.

A policy declares those that it needs in ``tracks``; ``InfoBatch(…, tracks=[…])`` adds others, to be
exported. A track of your own derives from :class:`Track`.

>>> import infobatch
>>> pruner = infobatch.Pruner(4, num_epochs=3, tracks=[infobatch.tracks.Visits()])
"""

from infobatch.memory.gathered import DynUnc, Forgetting, MeanError
from infobatch.memory.tracks import (
    Columns,
    Ema,
    GradientSizes,
    LastVisit,
    Latest,
    MovingVariance,
    Track,
    Visits,
    Welford,
    Window,
)

__all__ = [
    "Columns",
    "DynUnc",
    "Ema",
    "Forgetting",
    "GradientSizes",
    "LastVisit",
    "Latest",
    "MeanError",
    "MovingVariance",
    "Track",
    "Visits",
    "Welford",
    "Window",
]
