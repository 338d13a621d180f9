"""Two processes with torchrun: the same plans and weights on both, real savings, exact resuming."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainer_cases
from tiny_models import same_bits

CASES = Path(trainer_cases.__file__)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    run = subprocess.run(
        [*command, "2", str(CASES), str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("Saved ") == 6  # one line a training, by the first rank alone
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


def test_ranks_agree_and_share_the_epoch(ranks):
    first, second = (results["whole"] for results in ranks)
    assert same_bits(first["weights"], second["weights"])
    assert torch.equal(first["scores"], second["scores"])
    assert first["scores"].isfinite().all()
    assert first["savings"] == second["savings"]
    assert first["state"] == second["state"]
    assert first["state"][2] == 3.0
    assert first["state"][0] == first["state"][1]
    assert first["logged"][-1]["infobatch/samples_saved"] > 10
    for epoch, plan in first["plans"].items():
        assert torch.equal(plan, second["plans"][epoch])
        visited = first["visits"][epoch] + second["visits"][epoch]
        assert set(visited) == set(plan.tolist())
        assert len(visited) < len(plan) + 2 * 4  # Accelerate fills up the last batches
    assert len(first["plans"][1]) < 61


def test_resuming_on_two_ranks_gives_the_same_bits(ranks):
    for results in ranks:
        whole = results["whole"]
        for step in (3, 6):
            resumed = results[f"resumed from {step}"]
            assert same_bits(resumed["weights"], whole["weights"])
            assert torch.equal(resumed["scores"], whole["scores"])
            assert resumed["savings"] == whole["savings"]
            assert resumed["state"] == whole["state"]
            assert set(resumed["rates"]) < set(whole["rates"])


def test_one_process_with_the_same_global_batch_trains_alike(ranks, tmp_path):
    """The loss is the mean over the tokens of all ranks and accumulated batches, then as now."""
    alone = trainer_cases.few_steps(tmp_path, batch_size=8)
    for results in ranks:
        together = results["few steps"]
        assert together["state"] == alone["state"]
        assert torch.equal(together["plans"][1], alone["plans"][1])
        assert len(alone["plans"][1]) < 64
        assert torch.allclose(together["scores"], alone["scores"], atol=1e-5)
        for name, value in alone["weights"].items():
            assert torch.allclose(together["weights"][name], value, atol=1e-5), name
