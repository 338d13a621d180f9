"""InfoBatch: cheaper training over many epochs, by unbiased pruning of the data.

Each epoch leaves out, at random, some of the samples that the network has learned, and scales up the
loss of those that stay, so that the expected gradient is that of the full data.

The public names are in ``infobatch/public.py``, which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infobatch.lazy import lazy_names

if TYPE_CHECKING:
    from infobatch.public import *  # noqa: F403

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_names("infobatch")
