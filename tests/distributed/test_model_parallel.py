"""Ranks that share batches, in real processes on gloo: the same scores and plans on all of them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf, isnan, nan
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import infobatch
import model_parallel_cases
from infobatch.distributed import Ranks
from model_parallel_cases import BATCH, EPOCHS, RATE, SAVED, losses_of, problem, stages
from rank_threads import Exchange, Threads

CASES = Path(model_parallel_cases.__file__)
pytestmark = pytest.mark.skipif(
    sys.platform == "win32",
    reason="torch's wheels for Windows lack libuv, which torchrun's store needs (pytorch issue 148283)",
)
NUMBERS_OF_RANKS = [2, pytest.param(4, marks=pytest.mark.slow)]


def torchrun(case, ranks, out):
    """Run a case on some ranks; return what each left."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(CASES), case, str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(ranks)]


def in_one_process():
    """The pipeline's training without a pipeline."""
    train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=1.0)
    model = nn.Sequential(*stages())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 10 * EPOCHS)
    scheduler = infobatch.paced(decay, train_data, steps_per_epoch=10)
    loader = DataLoader(train_data, BATCH, sampler=train_data.sampler, drop_last=True)
    plans, rates = [], []
    for _ in range(EPOCHS):
        for x, y in loader:
            train_data.update(losses_of(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        plans.append(train_data.plan.order)
    return plans, rates, train_data


@pytest.mark.parametrize("ranks", NUMBERS_OF_RANKS)
def test_the_stages_of_a_pipeline_keep_in_step(ranks, tmp_path):
    """Only the last stage calls update(), in the middle of a step in which the other waits for it."""
    plans, rates, train_data = in_one_process()
    results = torchrun("pipeline", ranks, tmp_path)
    first = results[0]
    for result in results:
        assert result["missing"].startswith("The loader was iterated without set_epoch(0)")
        assert all(map(torch.equal, result["plans"], first["plans"]))
        assert torch.equal(result["scores"], first["scores"])
        assert result["savings"] == str(train_data.savings)
        assert result["rates"] == pytest.approx(rates), "also of the stage without losses"
        assert torch.equal(result["plans"][1], plans[1])
        assert torch.allclose(result["scores"], train_data.scores, rtol=1e-3, atol=1e-4)
        assert len(result["plans"][1]) < len(train_data)
        assert same_state(result["state"], first["state"])
        assert "made in 2 epochs" in result["documented"]
    assert not torch.equal(results[0]["scores"], torch.zeros(150))
    # Saved in the middle of an epoch, on every rank: none is lost and none comes twice.
    epoch, step = SAVED
    done = (step + 1) * BATCH
    assert len(first["state"]["losses"]) == done
    per_pair = [results[pair]["resumed"] for pair in range(0, ranks, 2)]
    for result, partner in zip(results[::2], results[1::2], strict=True):
        assert result["resumed"] == partner["resumed"]
    rest = [sample for samples in zip(*per_pair, strict=True) for sample in samples]
    left = first["plans"][epoch].tolist()[done:]
    assert rest[: len(left)] == left


@pytest.mark.parametrize("ranks", NUMBERS_OF_RANKS)
def test_ranks_whose_losses_differ_have_the_same_plans(ranks, tmp_path):
    results = torchrun("tensor", ranks, tmp_path)
    for form in ("position", "index", "sharded"):
        for result, partner in zip(results[::2], results[1::2], strict=True):
            own, others = result[form], partner[form]
            assert own["recorded"] != others["recorded"], "there is something to disagree about"
            assert all(map(torch.equal, own["plans"], others["plans"]))
            assert torch.equal(own["scores"], others["scores"])
            assert own["savings"] == others["savings"]
            assert same_state(own["state"], others["state"])
            # The losses of the first rank of the pair count.
            if form == "sharded" or ranks == 2:
                shard = own["state"]["shard"]
                expected = torch.tensor(
                    [own["recorded"][sample] for sample in range(shard[0], 150, shard[1])]
                )
                assert torch.equal(own["scores"], expected)
        if form != "sharded":
            assert all(torch.equal(results[0][form]["scores"], r[form]["scores"]) for r in results)
    for result in results:
        assert torch.allclose(*result["gradients"]), "of sequences that are divided"
        errors = result["errors"]
        assert errors["same group"].startswith(
            "The ranks in model_group are the ranks [0, 1] of process_group, expected the same one for "
            "all"
        )
        assert errors["other plan"].startswith("The ranks have drawn different plans")
        assert errors["again"].startswith(
            "set_epoch(0) would repeat an epoch that was left early, which is not possible with model_group="
        )
        assert errors["refresh"].startswith(
            "refresh() got a pruner with model_group=, expected one without"
        )


def test_losses_that_are_no_scores_are_none_on_the_ranks_that_follow_either():
    exchange = Exchange(2)

    def work(rank):
        pruner = infobatch.Pruner(4, 4)
        ranks = Ranks(model=Threads(2, rank=rank, exchange=exchange))
        pruner._course.find_ranks = pruner._ranks = lambda: ranks
        pruner.set_epoch(0)
        order = list(pruner.sampler)
        if rank == 1:
            pruner.update(torch.tensor([1.0, inf, -inf, nan]))
        pruner.set_epoch(1)
        return [pruner.scores[sample].item() for sample in order], pruner.savings.epochs[0]

    with ThreadPoolExecutor(2) as pool:
        for scores, passes in pool.map(work, range(2)):
            assert scores[0] == 1.0
            assert all(map(isnan, scores[1:]))
            assert passes.unscored == 3


def same_state(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    return one == other


@pytest.fixture
def eight_ranks():
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield torch.distributed.device_mesh.init_device_mesh(
        "cpu", (4, 2), mesh_dim_names=("data", "model")
    )
    torch.distributed.destroy_process_group()


def test_ranks_are_those_of_the_data(eight_ranks):
    data, model = (eight_ranks[name].get_group() for name in ("data", "model"))
    pruner = infobatch.Pruner(100, 3, process_group=data, model_group=model, global_order=False)
    assert len(pruner.sampler) == 25
    pruner.set_epoch(0)
    assert list(pruner.sampler) == pruner.plan.order.tolist()[2::4]
    pruner = infobatch.Pruner(100, 3, model_group=model)
    with pytest.raises(
        ValueError, match=r"^model_group got a group of 2 of 8 ranks, and process_group is missing"
    ):
        len(pruner.sampler)
    pruner = infobatch.Pruner(100, 3, model_group=torch.distributed.group.WORLD)
    assert len(pruner.sampler) == 100


def test_losses_that_are_dtensors(eight_ranks):
    pruner = infobatch.Pruner(100, 3, rank=0, world_size=1)
    samples = next(iter(pruner.batch_sampler(4)))
    losses = distribute_tensor(torch.rand(len(samples)), eight_ranks["model"], [Replicate()])
    with pytest.raises(
        TypeError,
        match=r"^update\(\) got a DTensor, expected a plain tensor .* losses\.full_tensor\(\) .* "
        r"losses\.to_local\(\)",
    ):
        pruner.update(losses)
    assert pruner.update(losses.to_local()).dim() == 0
