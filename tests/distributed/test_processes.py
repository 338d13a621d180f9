"""Real processes on gloo, started by torchrun: the same plans and scores, the same gradients."""

import math
import os
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import distributed_cases
import infobatch
from numbered import Numbered, loss_of

CASES = Path(distributed_cases.__file__)
ROOT = CASES.parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform == "win32",
    reason="torch's wheels for Windows lack libuv, which torchrun's store needs (pytorch issue 148283)",
)


def torchrun(case, ranks, out, *options):
    """Run a case on some ranks; return what each left."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), *options, str(CASES), case, str(out)]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            # On one node torchrun shares its store with the workers, and after a restart gloo would
            # find the addresses of the dead ones there (torch 2.13).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(ranks)]


def alone(epochs=distributed_cases.EPOCHS):
    """The same training in one process."""
    pruner = infobatch.Pruner(distributed_cases.SIZE, distributed_cases.EPOCHS, delta=1.0)
    plans = []
    for epoch in range(epochs):
        for index in pruner.sampler:
            pruner.update(loss_of(torch.tensor([float(index)]), epoch))
        plans.append(pruner.plan.order)
    pruner.set_epoch(epochs)
    return plans, pruner


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_same_plans_and_scores_as_one_process(ranks, tmp_path):
    plans, pruner = alone()
    for rank, result in enumerate(torchrun("drive", ranks, tmp_path)):
        for plan, own_plan, visited in zip(plans, result["plans"], result["visits"], strict=True):
            assert torch.equal(plan, own_plan)
            share = plan.tolist()[rank::ranks]
            assert visited[: len(share)] == share
            assert len(visited) == -(-len(plan) // ranks)
        assert torch.equal(result["scores"], pruner.scores)
        assert result["savings"] == str(pruner.savings)
    assert pruner.savings.saved > 0


def test_classes_have_their_share_of_each_rank_s_batches(tmp_path):
    """By the plan of one process, which also continues from the middle of two ranks' epoch."""
    pruner, labels = distributed_cases.in_order_of_classes()
    straight = distributed_cases.train_by_class(pruner)
    pruner.set_epoch(distributed_cases.EPOCHS)
    results = torchrun("stratified", 2, tmp_path)
    for rank, result in enumerate(results):
        for key in ("plans", "weights"):
            assert all(map(torch.equal, result[key], straight[key]))
        for plan, batches in zip(straight["plans"], result["visits"], strict=True):
            share = plan[rank::2].tolist()
            assert list(chain(*batches))[: len(share)] == share
            shares = labels[plan].bincount() / len(plan)
            for batch in batches:
                off = (labels[batch].bincount(minlength=3) - len(batch) * shares).abs()
                assert off.max() <= 1.25 + math.log2(len(batch)), "as docs/usage.md says"
        assert torch.equal(result["scores"], pruner.scores)
        assert result["savings"] == str(pruner.savings)
    assert len(straight["plans"][-1]) < 900

    alone, _ = distributed_cases.in_order_of_classes()
    alone.load_state_dict(results[0]["state"])
    rest = distributed_cases.train_by_class(alone)
    epoch, steps = distributed_cases.MIDDLE
    visited = 2 * distributed_cases.BATCH * steps
    assert list(chain(*rest["visits"][0])) == straight["plans"][epoch].tolist()[visited:]
    assert all(map(torch.equal, rest["plans"], straight["plans"][epoch:]))
    assert torch.equal(alone.scores, pruner.scores)


def test_a_stream_pruner_on_each_rank(tmp_path):
    """The gradients that DDP averages are those of all ranks' batches, on average over the draws."""
    first, second = torchrun("stream", 2, tmp_path)
    assert first["sizes"] != second["sizes"]
    assert torch.equal(first["gradients"], second["gradients"])
    model, (x, y) = distributed_cases.network(), distributed_cases.problem()[:48]
    ((model(x).squeeze(1) - y) ** 2).mean().backward()
    whole = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    error = first["gradients"].std(0) / len(first["gradients"]) ** 0.5
    z = (first["gradients"].mean(0) - whole) / error
    assert z.abs().max() < 4
    assert (whole / error).abs().max() > 20  # there is something to be wrong about
    for rank, result in enumerate((first, second)):
        pruner = infobatch.StreamPruner(0.3, seed=149, rank=rank)
        pruner.select(result["losses"])
        assert torch.equal(pruner.select(result["losses"]).index, result["draws"][-1])
        again = infobatch.StreamPruner(0.3, seed=149, rank=rank)
        again.load_state_dict(result["state"])
        assert again.savings == pruner.savings
    with pytest.raises(
        ValueError, match=r"state of a pruner with .*'rank': 0.*, expected .*'rank': 1"
    ):
        again.load_state_dict(first["state"])


def test_ranks_that_share_a_batch_count_as_one(tmp_path):
    _, pruner = alone(epochs=2)
    results = torchrun("mesh", 4, tmp_path)
    by_place = {tuple(result["place"]): result for result in results}
    for data in range(2):
        assert by_place[data, 0]["shares"] == by_place[data, 1]["shares"]
    assert by_place[0, 0]["shares"] != by_place[1, 0]["shares"]
    assert all(torch.equal(result["scores"], pruner.scores) for result in results)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_of_the_first_pruned_epoch_are_the_global_batch_s(ranks, tmp_path):
    """DDP and FSDP2 on several ranks, against one process with the whole batch."""
    results = torchrun("models", ranks, tmp_path)
    cases = {
        "ddp": {},
        **({"fsdp2": {}} if distributed_cases.HAS_FSDP2 else {}),
        "accumulate": {"accumulate": 2},
        "bf16": {"bf16": True},
    }
    for name, options in cases.items():
        single = distributed_cases.gradients(lambda model: model, world_size=1, **options)
        for result in results:
            assert result[name]["made"] == single["made"] < 96, name
            close = {"rtol": 0.05, "atol": 0.05} if name == "bf16" else {"rtol": 1e-3, "atol": 1e-4}
            assert torch.allclose(result[name]["gradients"], single["gradients"], **close), name
    assert torch.equal(results[0]["ddp"]["gradients"], results[1]["ddp"]["gradients"])
    assert results[0]["sharded"]["made"] == results[1]["sharded"]["made"] < 96


@pytest.mark.slow
def test_saved_by_four_ranks_in_mid_epoch_and_continued_by_two_and_one(tmp_path):
    plans, pruner = alone()
    saved = torchrun("save", 4, tmp_path)
    visited = [sample for result in saved for sample in result["visited"]]
    assert torch.equal(saved[0]["plan"], plans[1])
    assert sorted(visited) == sorted(plans[1].tolist()[:48])
    for ranks in (2, 1):
        results = torchrun("resume", ranks, tmp_path)
        rest = [sample for result in results for sample in result["visits"][0]]
        left = plans[1].tolist()[48:]
        assert set(rest) == set(left)
        assert len(rest) - len(left) < ranks
        for result in results:
            assert torch.equal(result["scores"], pruner.scores)
            assert result["savings"] == str(pruner.savings)


def test_sharded_scores_in_a_distributed_checkpoint(tmp_path):
    """Each rank gets back what it wrote, and another number of ranks what it needs."""
    saved = torchrun("save_sharded", 2, tmp_path)
    loaded = torchrun("load_sharded", 2, tmp_path)
    everyones = torch.empty(distributed_cases.SIZE)
    for rank, (before, after) in enumerate(zip(saved, loaded, strict=True)):
        assert after["epoch"] == 1
        assert after["error"] == ""
        assert torch.equal(after["plan"], before["plan"])
        assert (
            before["visited"] + after["rest"][: len(after["plan"]) - 12] == after["plan"].tolist()
        )
        for name, column in before["columns"].items():
            assert torch.equal(column.nan_to_num(-1), after["columns"][name].nan_to_num(-1)), name
        everyones[rank::2] = before["between"]
    assert not everyones.isnan().any()
    for ranks, results in ((2, loaded), (3, torchrun("load_sharded", 3, tmp_path))):
        for rank, result in enumerate(results):
            assert torch.equal(result["between"], everyones[rank::ranks])
            assert torch.equal(result["whole"], everyones)
    for result in results:
        assert (
            "dcp.load() got a state from the middle of an epoch, with its losses in 2 shards, expected 3"
            in result["error"]
        )


@pytest.mark.slow
def test_elastic_restart_after_a_kill(tmp_path):
    _, pruner = alone()
    results = torchrun("elastic", 3, tmp_path, "--max-restarts", "1")
    assert (tmp_path / "killed").exists()
    for result in results:
        assert result["restarts"] == 1
        assert torch.equal(result["scores"], pruner.scores)
        assert result["savings"] == str(pruner.savings)


def test_a_dead_rank_ends_the_others_with_an_error(tmp_path):
    """Without torchrun's watch: a rank that is gone makes the exchange fail within the time-out."""
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(CASES), "death", str(tmp_path)]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(2)
    ]
    for process in processes:
        assert process.wait(timeout=120) == 0
    result = torch.load(tmp_path / "rank-0.pt", weights_only=True)
    assert result["error"], "the surviving rank must not continue in silence"
    assert not (tmp_path / "rank-1.pt").exists()


def test_example():
    """The command in the example's first line, as it stands but for the epochs."""
    example = ROOT / "examples" / "ddp.py"
    command = example.read_text().splitlines()[0].removeprefix("# ").split()
    assert command[0] == "torchrun"
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command[1:], "--epochs", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Saved" in run.stdout
    assert "test accuracy" in run.stdout


def test_a_process_group_stays_out_of_a_spawned_worker():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        train_data = infobatch.InfoBatch(Numbered(16), 2, process_group=dist.group.WORLD)
        loader = DataLoader(
            train_data,
            8,
            sampler=train_data.sampler,
            num_workers=1,
            multiprocessing_context="spawn",
        )
        visited = []
        for x, _ in loader:
            train_data.update(x)
            visited += x.long().tolist()
    finally:
        dist.destroy_process_group()
    assert sorted(visited) == list(range(16))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
