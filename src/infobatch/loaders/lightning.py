"""Detect whether Lightning iterates the sampler without the callback for pruned epochs.

A sampler does not know what iterates it, and Lightning has no global current Trainer. The call
stack shows it, so it is inspected once per epoch, and only if Lightning was imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

# Lightning exists under two names, each with its own classes.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")
_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_FETCHERS = ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers")
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_SHARDING = ("lightning.fabric.utilities.distributed", "lightning_fabric.utilities.distributed")


def check_lightning(*, same_length: bool) -> None:
    """Raise if Lightning asks for an epoch's length or first index, and would train it wrongly.

    Call this from within the sampler, in the thread that iterates it. ``same_length`` means that
    every epoch has as many batches as a whole one, so that Lightning needs no callback.
    """
    if not any(package in sys.modules for package in _PACKAGES):
        return
    fetching, shards = False, 1
    for frame in _callers():
        module = frame.f_globals.get("__name__")
        if module in _SHARDING and frame.f_code.co_name == "__iter__":
            shards = frame.f_locals["self"].num_replicas
        # Not if the user's own loop, for instance in training_step, iterates the data.
        prepares = module in _LOOPS and frame.f_code.co_name == "setup_data"
        fetching = fetching or prepares or module in _FETCHERS
        if fetching and module in _TRAINERS and not same_length:
            _check_trainer(frame.f_locals["self"])
    if shards > 1:
        raise RuntimeError(
            f"Lightning has wrapped the sampler of an InfoBatch in a DistributedSampler for {shards} "
            "processes. Expected the sampler itself, which shards the samples already: this way they "
            "would be sharded twice. Pass use_distributed_sampler=False to Fabric.setup_dataloaders()."
        )


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _check_trainer(trainer: Any) -> None:
    if not trainer.training:  # evaluation changes no epoch's length
        return
    ours = sys.modules.get("infobatch.integrations.lightning")
    if ours and any(isinstance(callback, ours.InfoBatchCallback) for callback in trainer.callbacks):
        return
    names = ", ".join(type(callback).__name__ for callback in trainer.callbacks) or "none"
    raise RuntimeError(
        "Trainer.fit() got a train loader with the sampler of an InfoBatch, but no InfoBatchCallback "
        f"(callbacks: {names}). Lightning would treat every epoch as a full one: no validation after "
        "pruned epochs, and with several processes the samples sharded twice. Pass "
        "Trainer(callbacks=[InfoBatchCallback(train_data)]), from infobatch.integrations.lightning."
    )
