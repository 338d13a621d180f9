"""What loaders that Accelerate prepared say of themselves; asked only where Accelerate is in use.

They deal the batches out to the ranks, read a batch ahead and count epochs on their own, so neither
the sampler nor the losses show where a loop stands. All that is used here is what the package
documents of ``GradientState`` and its loaders; nothing is imported.
"""

from __future__ import annotations

import sys
from typing import Any

_NESTED = ("batch_sampler", "sampler")  # from a loader, through Accelerate's shards, to the sampler


def accelerate_in_use() -> bool:
    """Whether there is an ``Accelerator``."""
    accelerate = sys.modules.get("accelerate.state")
    return accelerate is not None and bool(accelerate.is_initialized())


def loader_at_work(sampler: object) -> Any | None:
    """The prepared loader that is in the middle of an iteration with this sampler, if there is one.

    From the call of ``set_epoch`` at the iteration's start until the loop has come to its end. One
    that was broken off stays at work until it is iterated again.
    """
    if not accelerate_in_use():
        return None
    state = sys.modules["accelerate.state"].GradientState()
    if not hasattr(state, "dataloader_references"):
        raise RuntimeError(
            f"accelerate {sys.modules['accelerate'].__version__} does not say which loaders are being "
            "iterated, so an epoch's end cannot be told. Expected accelerate>=1.15,<2: "
            "pip install 'infobatch[accelerate]'."
        )
    for loader in reversed(state.dataloader_references):
        if loader is not None and _draws_from(loader, sampler):
            return loader
    return None


def _draws_from(loader: object, sampler: object) -> bool:
    layer: object = loader
    while True:
        inner = next((getattr(layer, name) for name in _NESTED if hasattr(layer, name)), None)
        if inner is None or inner is sampler:
            return inner is not None
        layer = inner
