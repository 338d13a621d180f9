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
from simulated_device import DEVICE, recording, unrecorded, without_float64

SIZE, BATCH = 400, 32


def losses_of(index, epoch, dtype=torch.float32):
    values = torch.tensor([loss_of(sample, epoch) for sample in index], dtype=dtype)
    return values.to(DEVICE).requires_grad_()


def plain(index, epoch):
    return {"losses": losses_of(index, epoch)}


def bfloat16(index, epoch):
    return {"losses": losses_of(index, epoch, torch.bfloat16)}


def update(pruner, **batch):
    return pruner.update(**batch)


def update_twice(pruner, losses, index=None):
    """Micro-batches of different sizes, as in gradient accumulation."""
    third = len(losses) // 3 + 1
    parts = (slice(None, third), slice(third, None))
    for part in parts:
        batch = {} if index is None else {"index": index[part]}
        pruner.update(losses[part], **batch)


def pure_step(pruner, losses, device=DEVICE, **index):
    weights = pruner.batch_weights(device=device, **index)
    mean = (weights * losses).mean()
    pruner.record(losses, **index)
    return mean


def pure_step_by_name(pruner, losses):
    """``device="cuda"`` is the same device as that of the losses, ``cuda:0``."""
    return pure_step(pruner, losses, device=DEVICE.type)


@dataclass(frozen=True)
class Case:
    """Calls for a batch, what they get, and the kernels that they may launch."""

    call: Callable[..., Any]
    inputs: Callable[..., dict[str, Any]]
    kernels: int  # per batch, in the middle of an epoch
    first: int  # at the first batch of an epoch
    last: int  # at its last batch
    per_batch: int = 0  # copies to the device besides the weights: an index that the host has
    columns: int = 1  # of what is copied to the host at the end: the losses, and extras
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


def counted(index, epoch):
    """A loss that is divided by a number of the batch; a pruned epoch weights it."""
    samples = scores_of(index, epoch)
    return {"losses": infobatch.PerSample(**samples, counts=samples["scores"])}


def skip_some(pruner, losses, **index):
    """Skip some batches, in the middle of an epoch."""
    if pruner.progress.done // BATCH % 3 == 1:
        return pruner.skip(**index)
    return pruner.update(losses, **index)


def reweighted(pruner, losses, **index):
    pruner.update(losses, **index)
    return pruner.reweight(losses, **index)


EXTRA = {"tracks": [Latest("extra")]}


def indexed(inputs=plain, **place):
    """The batch carries the index of its samples."""
    return lambda index, epoch: inputs(index, epoch) | {"index": torch.tensor(index).to(**place)}


def index_in_list(index, epoch):
    return plain(index, epoch) | {"index": index}


# The kernels of the calls for a batch: in the middle of an epoch, at its first batch and at its last one.
CASES = {
    "update": Case(update, plain, 2, 4, 3),
    "bf16": Case(update, bfloat16, 4, 6, 5),
    "scores=": Case(update, scores_of, 2, 4, 3),
    "PerSample": Case(update, per_sample_of, 2, 4, 3),
    "PerSample, counts": Case(update, counted, 10, 12, 11),
    "extras": Case(update, extras_of, 3, 5, 4, columns=2, options=EXTRA),
    "accumulation": Case(update_twice, plain, 6, 8, 7),
    "reweight": Case(reweighted, plain, 3, 5, 5),
    "skip": Case(skip_some, plain, 2, 4, 3),
    "shrink": Case(update, plain, 3, 4, 3, batches={"shrink": "batch"}),
    "even": Case(update, plain, 3, 4, 3, batches={"even": True}),
    "drop_last": Case(update, plain, 2, 4, 3, batches={"drop_last": True}),
    "pure step": Case(pure_step, plain, 4, 5, 5, batches={"pad": True}),
    "pure step, device by name": Case(pure_step_by_name, plain, 4, 5, 5, batches={"pad": True}),
    "index": Case(update, indexed(device=DEVICE), 5, 7, 6),
    "index on the host": Case(update, indexed(), 5, 7, 6, per_batch=1),
    "index of int32 on the host": Case(update, indexed(dtype=torch.int32), 5, 7, 6, per_batch=1),
    "index in a list": Case(update, index_in_list, 5, 7, 6, per_batch=1),
    "index, bf16": Case(update, indexed(bfloat16, device=DEVICE), 8, 10, 9),
    "index, extras": Case(
        update, indexed(extras_of, device=DEVICE), 7, 9, 8, columns=2, options=EXTRA
    ),
    "index, counts": Case(update, indexed(counted, device=DEVICE), 13, 15, 14),
    "index, accumulation": Case(update_twice, indexed(device=DEVICE), 12, 13, 12),
    "index, reweight": Case(reweighted, indexed(device=DEVICE), 8, 10, 9),
    "index, skip": Case(skip_some, indexed(device=DEVICE), 5, 7, 6),
    "index, shrink": Case(update, indexed(device=DEVICE), 5, 7, 6, batches={"shrink": "batch"}),
    "index, pure step": Case(pure_step, indexed(device=DEVICE), 7, 9, 8),
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


@pytest.fixture
def strict():
    """A device without float64, and without operators that are not deterministic."""
    torch.use_deterministic_algorithms(True)
    with without_float64():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("strict")
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

    # Nothing waits before the last update, which copies the losses and extras at once.
    before = everything.transfers[: len(everything.transfers) - len(last.transfers)]
    assert [transfer for transfer in before if transfer.blocking] == []
    assert [transfer for transfer in before if transfer.direction == "to host"] == []
    assert last.waits == last.to_host
    (copy,) = last.to_host
    rows = SIZE if "index" in name else len(pruner.plan)
    assert rows <= copy.size / (4 * case.columns) <= max(rows, len(logs) * BATCH)
    assert lost == []
    weights = (
        2 if "index" in name else 1
    )  # by index, the classes of samples and the weights of classes
    assert len(everything.to_device) <= weights + case.per_batch * len(logs)  # once per epoch
    assert all(len(log.to_device) <= case.per_batch for log in middle)

    assert len(first.kernels) <= case.first, first.kernels
    assert len(last.kernels) <= case.last, last.kernels
    for log in middle:
        assert len(log.kernels) <= case.kernels, log.kernels
