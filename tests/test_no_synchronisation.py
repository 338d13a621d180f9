"""``update`` never waits for the device.

There is no GPU here, so the losses lie on torch's meta device, whose tensors have no values: whatever
would bring one to the host (``item``, ``cpu``, ``numpy``, ``nonzero``, a bool) cannot work. A dispatch
mode also watches every operation, so that nothing slips through on tensors of the library's own.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import infobatch

WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


class Watch(TorchDispatchMode):
    """Refuses operations that make the host wait for a device's value."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::").split(".")[0]
        self.operations.append(name)
        assert name not in WAITING, f"{name} waits for the device"
        result = function(*args, **(kwargs or {}))
        inputs = [value for value in args if isinstance(value, torch.Tensor)]
        if isinstance(result, torch.Tensor) and result.device.type == "cpu":
            assert all(value.device.type == "cpu" for value in inputs), f"{name} copies to the host"
        return result


def pruned(size=500):
    pruner = infobatch.Pruner(size, 4, delta=1.0)
    everything = torch.arange(size)
    pruner.update(torch.rand(size), index=everything)
    pruner.set_epoch(1)
    assert not pruner.plan.whole
    return pruner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("whole", [False, True])
def test_update_without_index(whole, dtype):
    pruner = infobatch.Pruner(500, 4) if whole else pruned()
    walk = iter(pruner.sampler)
    for _ in range(96):
        next(walk)
    with Watch() as watch:
        for _ in range(3):
            losses = torch.empty(32, dtype=dtype, device="meta", requires_grad=True)
            loss = pruner.update(losses)
            assert loss.device.type == "meta"
            loss.backward()
            assert pruner.reweight(losses).dtype == dtype
        losses = torch.empty(32, device="meta")
    assert ("mean" if whole else "dot") in watch.operations


@pytest.mark.parametrize("index_device", ["cpu", "meta"])
def test_update_with_index(index_device):
    pruner = pruned()
    index = pruner.plan.order[:32].to(index_device)
    losses = torch.empty(32, device="meta", requires_grad=True)
    with Watch() as watch:
        pruner.update(losses, index=index).backward()
        pruner.update(losses, scores=losses.detach(), index=index)
    assert "dot" in watch.operations


@pytest.mark.parametrize("whole", [False, True])
def test_update_by_key(whole):
    pruner = infobatch.KeyedPruner(4, delta=1.0)
    keys = list(range(500))
    if not whole:
        pruner.update(torch.rand(500), key=keys)
        pruner.set_epoch(1)
        keys = list(filter(pruner.keeps, keys))
    losses = torch.empty(32, device="meta", requires_grad=True)
    with Watch() as watch:
        for start in (0, 32, 64):  # the buffers grow meanwhile
            loss = pruner.update(losses, key=keys[start : start + 32])
            assert loss.device.type == "meta"
            loss.backward()
    assert ("mean" if whole else "dot") in watch.operations


def test_the_watch_sees():
    with pytest.raises(AssertionError, match="waits for the device"), Watch():
        torch.ones(1).item()
    with pytest.raises(AssertionError, match="waits for the device"), Watch():
        torch.ones(3).nonzero()
