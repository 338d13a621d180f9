"""The simulated device sees what it is there to see: waits, copies, freed sources, mixed devices."""

import doctest

import numpy as np
import pytest
import torch

import simulated_device
from simulated_device import DEVICE, on_host, recording, without_float64


def test_its_example():
    assert doctest.testmod(simulated_device).failed == 0


@pytest.fixture
def x():
    return torch.arange(4.0).to(DEVICE)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: float(x[0]),
        lambda x: bool(x[0]),
        lambda x: torch.equal(x, x),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        np.asarray,
    ],
)
def test_the_host_cannot_read_its_tensors(x, read):
    with pytest.raises((RuntimeError, TypeError), match=r"waits?|wait for|not supported|convert"):
        read(x)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, host: x + host,
        lambda x, host: host * x,
        lambda x, host: torch.dot(host, x),
        lambda x, host: torch.where(x > 1, x, host),
        lambda x, host: host[x.long()],
        lambda x, host: torch.stack([x, host]),
        lambda x, host: x.index_select(0, host.long()),
    ],
)
def test_its_tensors_cannot_be_mixed_with_the_hosts(x, mix):
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device"):
        mix(x, torch.arange(4.0))


def test_numbers_may_be_the_hosts(x):
    with recording() as log:
        y = x * 2 + torch.tensor(1.0)
    assert on_host(y).tolist() == [1, 3, 5, 7]
    assert log.kernels == ["mul", "add"]
    assert not log.transfers


@pytest.mark.parametrize(
    ("wait", "direction"),
    [
        (lambda x: x.cpu(), "to host"),
        (lambda x: x.to("cpu", torch.float64), "to host"),
        (lambda x: torch.empty(4).copy_(x), "to host"),
        (lambda x: x[x > 1], "to host"),
        (lambda x: x.masked_select(x > 1), "to host"),
        (lambda x: x.nonzero(), "to host"),
        (lambda x: torch.tensor([1.0, 2.0], device=x.device), "to device"),
        (lambda x: x.new_tensor([1.0, 2.0]), "to device"),
        (lambda x: torch.ones(4).to(x), "to device"),
        (lambda x: torch.as_tensor(np.ones(4), device=x.device), "to device"),
        (lambda x: x[[0, 2]], "to device"),
        (lambda x: x[torch.tensor([0, 2])], "to device"),
        (lambda x: x.copy_(torch.ones(4)), "to device"),
    ],
)
def test_waiting_is_recorded(x, wait, direction):
    with recording() as log:
        wait(x)
    assert [transfer.direction for transfer in log.waits] == [direction]


def test_kernels_are_counted_but_not_views_and_allocations(x):
    with recording() as log:
        y = torch.empty(8, device=DEVICE)
        y.view(2, 4)[1].copy_(x)
        y[:4] = 0.0
        (y.reshape(2, 4).T.unsqueeze(0) * 2).sum()
        torch.arange(3, device=DEVICE)
    assert [name for name in log.kernels if name not in ("fill_", "copy_")] == [
        "mul",
        "sum",
        "arange",
    ]
    assert not log.transfers


def test_a_source_that_stays_is_not_lost(x):
    host = torch.ones(4)
    with recording() as log:
        copies = [host.to(DEVICE, non_blocking=True), x.copy_(host, non_blocking=True)]
    assert len(log.to_device) == len(copies)
    assert not log.waits
    assert not log.lost


@pytest.mark.parametrize(
    "lose",
    [
        lambda host: torch.ones(4).to(DEVICE, non_blocking=True),
        lambda host: torch.from_numpy(np.ones(4, np.float32)).to(DEVICE, non_blocking=True),
        lambda host: host.to(DEVICE, torch.bfloat16, non_blocking=True),  # converted on the host
        lambda host: (host.to(DEVICE, non_blocking=True), host.zero_()),
    ],
)
def test_a_source_that_is_freed_or_overwritten_is_lost(lose):
    with recording() as log:
        lose(torch.ones(4))
    assert len(log.lost) == 1


def test_a_copy_to_the_host_without_blocking_arrives_later(x):
    copy = x.to("cpu", non_blocking=True)
    assert copy.isnan().all()
    torch.simulated.synchronize()
    assert copy.tolist() == [0, 1, 2, 3]
    copy = x.to("cpu", non_blocking=True)
    x.sum().cpu()  # waits for everything before it
    assert copy.tolist() == [0, 1, 2, 3]


def test_deterministic_algorithms(x):
    torch.use_deterministic_algorithms(True)
    try:
        x.long().cumsum(0)
        with pytest.raises(RuntimeError, match="deterministic"):
            x.cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_device_without_float64(x):
    assert x.double().dtype is torch.float64
    with without_float64(), pytest.raises(TypeError, match=r"no torch\.float64"):
        x.double()


def test_training_gives_the_same_bits_as_on_the_cpu():
    def train(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = torch.randn(6, 4).to(device), torch.randint(3, (6,)).to(device)
        for _ in range(3):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [on_host(parameter.detach()) for parameter in model.parameters()]

    assert all(map(torch.equal, train("cpu"), train(DEVICE)))


def test_nobody_takes_it_for_a_gpu():
    """Registered once, it stays for the rest of the process, whose other tests run on the CPU."""
    assert not torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() is None
    assert torch.accelerator.device_count() == 0
    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.all_reduce(torch.ones(1))
    finally:
        torch.distributed.destroy_process_group()
    assert not torch.ones(1).is_pinned()
