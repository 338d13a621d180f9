"""What ``KeyedPruner.update`` asks of the device: a copy of the weights there, for which nobody waits."""

import pytest
import torch

import infobatch
from simulated_device import DEVICE, recording, without_float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("whole", [False, True])
def test_update_by_key(whole, dtype):
    pruner = infobatch.KeyedPruner(4, delta=1.0)
    keys = list(range(500))
    if not whole:
        pruner.update(torch.rand(500, generator=torch.Generator().manual_seed(0)), key=keys)
        pruner.set_epoch(1)
        keys = list(filter(pruner.keeps, keys))
        assert len(keys) < 500
    with without_float64():
        for start in (0, 32, 64, 96):  # the buffers grow meanwhile
            losses = torch.ones(32, dtype=dtype).to(DEVICE).requires_grad_()
            with recording() as log:
                loss = pruner.update(losses, key=keys[start : start + 32])
            assert loss.device == DEVICE
            assert loss.dtype is dtype
            loss.backward()
            assert not log.waits
            assert not log.lost
            assert [copy.size for copy in log.to_device] == ([] if whole else [4 * 32])
            assert len(log.kernels) <= 6, log.kernels
