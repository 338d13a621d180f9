"""What ``StreamPruner`` asks of the device: one copy of the scores there and back, or nothing at all."""

import math

import pytest
import torch

from infobatch import StreamPruner
from simulated_device import DEVICE, on_host, recording, without_float64

ON_HOST, ON_DEVICE = 1, 15  # kernels of one select(), at most
SHARES = [{"keep": 0.4}, {"keep": 0.4, "max_noise": 0.1}]
FIXED = {"count": 40}


def batches(dtype=torch.float32, number=5, size=128):
    generator = torch.Generator().manual_seed(0)
    for _ in range(number):
        scores = torch.randn(size, generator=generator).exp()
        scores[7] = math.nan
        yield scores.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", SHARES, ids=str)
def test_a_draw_on_the_host_copies_once_in_each_direction(options, dtype):
    pruner = StreamPruner(**options)
    for scores in batches(dtype):
        there = scores.to(DEVICE)
        with recording() as log:
            kept = pruner.select(there)
        assert [transfer.size for transfer in log.to_host] == [scores.nbytes]
        assert [(copy.size, copy.blocking) for copy in log.to_device] == [(8 * len(kept), False)]
        assert not log.lost
        assert len(log.kernels) <= ON_HOST, log.kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fixed_number_waits_for_nothing(dtype):
    pruner = StreamPruner(**FIXED)
    for scores in batches(dtype):
        there = scores.to(DEVICE)
        with recording() as log:
            kept = pruner.select(there)
        assert kept.index.shape == kept.weights.shape == (40,)
        assert not log.waits
        assert [copy.size for copy in log.to_device] == [4 * len(scores)]  # random numbers
        assert not log.lost
        assert len(log.kernels) <= ON_DEVICE + (dtype is torch.bfloat16), log.kernels


@pytest.mark.parametrize("options", [*SHARES, FIXED], ids=str)
def test_the_mean_waits_for_nothing(options):
    kept = StreamPruner(**options).select(next(batches()).to(DEVICE))
    for dtype, kernels in ((torch.float32, 2), (torch.bfloat16, 4)):
        losses = torch.ones(len(kept), dtype=dtype, device=DEVICE)
        with recording() as log:
            kept.mean(losses)
        assert not log.transfers
        assert len(log.kernels) <= kernels, log.kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [*SHARES, FIXED], ids=str)
def test_the_same_draws_as_on_the_cpu(options, dtype):
    """Also on a device without float64, and with deterministic algorithms."""
    here, there = StreamPruner(**options), StreamPruner(**options)
    torch.use_deterministic_algorithms(True)
    try:
        for scores in batches(dtype):
            with without_float64():
                other = there.select(scores.to(DEVICE))
            kept = here.select(scores)
            assert torch.equal(kept.index, on_host(other.index))
            assert torch.equal(kept.weights, on_host(other.weights))
    finally:
        torch.use_deterministic_algorithms(False)
    assert here.savings == there.savings
    assert here.savings.unscored == 5
    assert str(here.state_dict()) == str(there.state_dict())
