"""What ranks exchange: how many bytes, in which pieces, from which device, with the same bits."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import infobatch
from infobatch.distributed import communicator
from infobatch.distributed.communicator import Communicator
from rank_threads import Exchange, Threads, on_ranks

ROOT = Path(__file__).parents[2]


def in_threads(world_size, work):
    """Run ``work(communicator)`` on every rank; return the results in order of rank."""
    exchange = Exchange(world_size)
    ranks = [Threads(world_size, rank=rank, exchange=exchange) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(work, ranks))


@pytest.mark.parametrize("count", [1, 2, 7, 12, 1000])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_sums_are_the_same_on_every_rank(world_size, count):
    """Also where the order of additions matters, which a backend would be free to choose."""
    rng = np.random.default_rng(count)
    rows = rng.standard_exponential((world_size, count)) * 10.0 ** rng.integers(-9, 9, count)
    given = rows.copy()
    totals = in_threads(world_size, lambda own: own.sum(rows[getattr(own, "rank", 0)]))
    for total in totals:
        assert total.tobytes() == totals[0].tobytes()
        assert np.allclose(total, rows.sum(0), rtol=1e-12)
    assert np.array_equal(rows, given)


def test_losses_are_merged_in_pieces(monkeypatch):
    """A chunk is a part of the data, and what is merged from them is the same."""

    def train(pruner, rank):
        for epoch in range(3):
            for samples in pruner.batch_sampler(4):
                losses = torch.tensor(samples).mul(7919).add(epoch).remainder(101).float()
                pruner.update(losses.where(losses > 3, torch.nan))
                if epoch == 1 and len(samples) < 4:
                    pruner.state_dict()
        return pruner.scores, pruner.savings

    whole = on_ranks(3, train, 500, 4, delta=1.0)
    monkeypatch.setattr(communicator, "_CHUNK", 24)
    sizes, lock = [], threading.Lock()
    gather = Exchange.gather

    def recorded(self, rank, row):
        with lock:
            sizes.append(row.numel())
        return gather(self, rank, row)

    monkeypatch.setattr(Exchange, "gather", recorded)
    pieces = on_ranks(3, train, 500, 4, delta=1.0)
    assert max(sizes) == 24 // 3
    for scores, savings in pieces:
        assert torch.equal(scores.nan_to_num(-1), whole[0][0].nan_to_num(-1))
        assert savings == whole[0][1]
        assert savings.unscored > 0


class Received(torch.utils._python_dispatch.TorchDispatchMode):
    """The bytes of everything that collective calls return."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.bytes += nbytes(args[0])
        return function(*args, **(kwargs or {}))


def nbytes(outputs):
    return outputs.nbytes if isinstance(outputs, torch.Tensor) else sum(map(nbytes, outputs))


@pytest.fixture
def thousand_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1024)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")  # sums of a fake group mean nothing
def test_a_sharded_plan_receives_little_at_a_thousand_ranks(thousand_ranks):
    """The noise rule adds up 98,304 numbers: twice these, not a thousand times."""
    pruner = infobatch.Pruner(50_000, 4, policy="noise", sharded=True)
    with Received() as received:
        for samples in pruner.batch_sampler(100):
            pruner.update(torch.rand(len(samples)))
        pruner.set_epoch(1)
        len(pruner.sampler)
    assert 1e6 < received.bytes < 5e6


def test_merged_losses_stay_in_main_memory_once(tmp_path):
    """Ten bytes per sample at the peak: scores, plan and labels, but not everyone's losses."""
    size, out = 30_000_000, tmp_path / "billion.json"
    command = [sys.executable, "benchmarks/billion.py", "--size", str(size), "--ranks", "1024"]
    run = subprocess.run(
        [*command, "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (row,) = json.loads(out.read_text())["measurements"]
    grown = 1e9 * (row["peak_gigabytes"] - row["peak_gigabytes_at_start"])
    assert grown < 10 * size + 3 * 4 * communicator._CHUNK
    assert sum(row["received_bytes"].values()) < 4.1 * size


@pytest.mark.parametrize(
    ("config", "known", "bound", "expected"),
    [
        ("cpu:gloo,cuda:nccl", "cuda:2", None, "cpu"),
        ("cuda:nccl", "cpu", None, "cuda:3"),
        ("cuda:nccl", "cuda:2", "cuda:1", "cuda:2"),
        ("cuda:nccl", "cpu", "cuda:1", "cuda:1"),
        ("cuda:nccl", "cuda", None, "cuda:3"),
    ],
)
def test_the_device_of_an_exchange_has_an_index(config, known, bound, expected, monkeypatch):
    """Without one, ranks of scripts that never call set_device() would all use the first GPU."""
    group = type("Group", (), {"bound_device_id": bound and torch.device(bound)})()
    monkeypatch.setattr(communicator, "has_process_group", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    ranks = Communicator(2, group)
    assert ranks._device(torch.device(known)) == torch.device(expected)


def test_the_wait_of_a_meeting_can_be_set():
    pruner = infobatch.Pruner(10, 2, meeting_timeout=120)
    assert pruner._ranks().communicator.meeting_timeout == 30  # alone, there is nobody to wait for
    pruner = infobatch.Pruner(10, 2, meeting_timeout=120, rank=0, world_size=2)
    assert pruner._ranks().communicator.meeting_timeout == 120
    with pytest.raises(
        ValueError, match=r"^meeting_timeout got 0, expected a number of seconds > 0"
    ):
        infobatch.Pruner(10, 2, meeting_timeout=0)
