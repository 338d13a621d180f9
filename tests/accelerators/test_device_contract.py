"""What a training step asks of the device: no waiting, few kernels, and one copy of the losses per epoch.

Every case runs a whole and a pruned epoch on the simulated device. Within an epoch nothing blocks in either
direction, nothing is copied to the host, and what is copied to the device comes from memory that stays. At the
epoch's end the losses are copied to the host, once. No call launches more kernels than the table says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import infobatch
from infobatch.tracks import Latest
from numbered import loss_of
from simulated_device import DEVICE, recording, unrecorded

SIZE, BATCH = 400, 32


def losses_of(index, epoch, dtype=torch.float32):
    values = torch.tensor([loss_of(sample, epoch) for sample in index], dtype=dtype)
    return values.to(DEVICE).requires_grad_()


def plain(index, epoch):
    return {"losses": losses_of(index, epoch)}


def bfloat16(index, epoch):
    return {"losses": losses_of(index, epoch, torch.bfloat16)}


def with_index(index, epoch, *, dtype=torch.float32, **place):
    return {"losses": losses_of(index, epoch, dtype), "index": torch.tensor(index).to(**place)}


def update(pruner, **batch):
    return pruner.update(**batch)


def update_twice(pruner, losses):
    """Micro-batches, as in gradient accumulation."""
    first = pruner.update(losses[: len(losses) // 3 + 1])
    return first, pruner.update(losses[len(losses) // 3 + 1 :]) if len(losses) > 1 else first


def pure_step(pruner, losses, **index):
    weights = pruner.batch_weights(device=losses.device, **index)
    mean = (weights * losses).mean()
    pruner.record(losses, **index)
    return mean


@dataclass(frozen=True)
class Case:
    """Calls for a batch, what they get, and the kernels that they may launch."""

    call: Callable[..., Any]
    inputs: Callable[..., dict[str, Any]]
    kernels: int  # per batch, in the middle of an epoch
    first: int  # at the first batch of an epoch
    last: int  # at its last batch
    to_device: int = 1  # copies to the device in an epoch: the weights of a pruned one
    per_batch: int = 0  # and in every batch: an index that the host has
    buffers: int = 1  # what is copied to the host at the end: the losses, and extras
    options: dict[str, Any] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)


def extras_of(index, epoch):
    losses = losses_of(index, epoch)
    return {"losses": losses, "extras": {"extra": losses.detach() * 2}}


def scores_of(index, epoch):
    losses = losses_of(index, epoch)
    return {"losses": losses, "scores": losses.detach() * 2}


def per_sample_of(index, epoch):
    return {"losses": infobatch.PerSample(**scores_of(index, epoch))}


def skip_some(pruner, losses, **index):
    """Skip some batches, in the middle of an epoch."""
    if pruner.progress.done // BATCH % 3 == 1:
        return pruner.skip(**index)
    return pruner.update(losses, **index)


def reweighted(pruner, losses, **index):
    pruner.update(losses, **index)
    return pruner.reweight(losses, **index)


EXTRA = {"tracks": [Latest("extra")]}
ON_DEVICE, ON_HOST = {"device": DEVICE}, {"device": "cpu"}


def indexed(place, dtype=torch.float32):
    return lambda index, epoch: with_index(index, epoch, dtype=dtype, **place)


def indexed_extras(index, epoch):
    return extras_of(index, epoch) | {"index": torch.tensor(index).to(DEVICE)}


# The kernels of a call: at a batch in the middle of an epoch, at its first and at its last one.
CASES = {
    "update": Case(update, plain, 3, 6, 6),
    "bf16": Case(update, bfloat16, 5, 8, 8),
    "scores=": Case(update, scores_of, 3, 6, 6),
    "PerSample": Case(update, per_sample_of, 3, 6, 6),
    "extras": Case(update, extras_of, 4, 8, 8, buffers=2, options=EXTRA),
    "accumulation": Case(update_twice, plain, 6, 9, 9),
    "reweight": Case(reweighted, plain, 4, 7, 7),
    "skip": Case(skip_some, plain, 3, 6, 6),
    "shrink": Case(update, plain, 3, 6, 6, batches={"shrink": "batch"}),
    "even": Case(update, plain, 3, 6, 6, batches={"even": True}),
    "drop_last": Case(update, plain, 3, 6, 6, batches={"drop_last": True}),
    "pure step": Case(pure_step, plain, 5, 8, 8, batches={"pad": True}),
    "index": Case(update, indexed(ON_DEVICE), 9, 12, 12, to_device=2),
    "index on the host": Case(update, indexed(ON_HOST), 9, 12, 12, to_device=2, per_batch=1),
    "index, bf16": Case(update, indexed(ON_DEVICE, torch.bfloat16), 12, 15, 15, to_device=2),
    "index, extras": Case(
        update, indexed_extras, 14, 18, 18, to_device=2, buffers=2, options=EXTRA
    ),
    "index, reweight": Case(reweighted, indexed(ON_DEVICE), 13, 16, 16, to_device=2),
    "index, skip": Case(skip_some, indexed(ON_DEVICE), 9, 12, 12, to_device=2),
    "index, shrink": Case(
        update, indexed(ON_DEVICE), 9, 12, 12, to_device=2, batches={"shrink": "batch"}
    ),
    "index, pure step": Case(
        pure_step, indexed(ON_DEVICE), 11, 14, 14, to_device=2, batches={"pad": True}
    ),
}


def run_epoch(case, pruner, epoch):
    """Run an epoch; return the log of all of it, those of its batches, and the copies without a source."""
    logs, lost = [], []
    with recording() as whole:
        for index in pruner.batch_sampler(BATCH, **case.batches):
            with unrecorded():  # what the training loop does by itself
                inputs = case.inputs(index, epoch)
            with recording() as log:
                result = case.call(pruner, **inputs)
            logs.append(log)
            lost += log.lost
            if isinstance(result, torch.Tensor):
                result.backward()
    return whole, logs, lost


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "pruned"])
@pytest.mark.parametrize("name", CASES)
def test_contract(name, whole):
    case = CASES[name]
    pruner = infobatch.Pruner(SIZE, 4, delta=1.0, **case.options)
    if not whole:
        run_epoch(case, pruner, 0)
    everything, logs, lost = run_epoch(case, pruner, 0 if whole else 1)
    assert pruner.plan.whole is whole
    first, *middle, last = logs
    assert len(middle) > 3

    # Nothing waits before the last update; there, one copy of the losses, and of each extra.
    before = everything.transfers[: len(everything.transfers) - len(last.transfers)]
    assert [transfer for transfer in before if transfer.blocking] == []
    assert [transfer for transfer in before if transfer.direction == "to host"] == []
    assert last.waits == last.to_host
    assert len(last.to_host) == case.buffers
    rows = SIZE if "index" in name else len(pruner.plan)
    for copy in last.to_host:
        assert rows <= copy.size / 4 <= max(rows, len(logs) * BATCH)
    assert lost == []
    assert len(everything.to_device) <= case.to_device + case.per_batch * len(logs)
    assert all(len(log.to_device) <= case.per_batch for log in middle)

    assert len(first.kernels) <= case.first, first.kernels
    assert len(last.kernels) <= case.last, last.kernels
    for log in middle:
        assert len(log.kernels) <= case.kernels, log.kernels
