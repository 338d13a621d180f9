"""Two processes with torchrun: the same plans and weights on both, real savings, exact resuming."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainer_cases
from tiny_models import same_bits
from trainer_cases import check_continuation

CASES = Path(trainer_cases.__file__)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    alone = trainer_cases.positioned(out / "alone", per_device_train_batch_size=4)
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
    assert run.stdout.count("Saved ") == 13  # one line per training, by the first rank alone
    results = [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
    for result in results:
        result["folder"], result["alone"] = out, alone.position()
    return results


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


def test_a_checkpoint_changes_nothing(ranks):
    """The ranks exchange their losses for it, of samples that they will repeat to fill up batches."""
    for results in ranks:
        whole, unsaved = results["whole"], results["unsaved"]
        assert same_bits(unsaved["weights"], whole["weights"])
        assert torch.equal(unsaved["scores"], whole["scores"])


def test_resuming_on_two_ranks_gives_the_same_bits(ranks):
    for results in ranks:
        whole = results["unsaved"]
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
        two_ranks = results["few steps"]
        assert two_ranks["state"] == alone["state"]
        assert torch.equal(two_ranks["plans"][1], alone["plans"][1])
        assert len(alone["plans"][1]) < 64
        assert torch.allclose(two_ranks["scores"], alone["scores"], atol=1e-5)
        for name, value in alone["weights"].items():
            assert torch.allclose(two_ranks["weights"][name], value, atol=1e-5), name


@pytest.mark.parametrize("step", trainer_cases.STOPS)
def test_a_run_of_one_process_continues_on_two_ranks(ranks, step):
    before = until(ranks[0]["alone"], trainer_cases.ALONE[step])
    after = [results[f"from one at {step}"] for results in ranks]
    check_continuation(before, after, 8, 3, warmup_steps=2)


@pytest.mark.parametrize("step", trainer_cases.STOPS)
def test_a_run_of_two_ranks_continues_in_one_process(ranks, step, tmp_path):
    before = [results[f"stopped at {step}"] for results in ranks]
    visits = {
        epoch: sorted({*visited, *before[1]["visits"][epoch]})
        for epoch, visited in before[0]["visits"].items()
    }
    resumed = trainer_cases.positioned(
        tmp_path,
        resume=str(ranks[0]["folder"] / f"to-{step}" / f"checkpoint-{step}"),
        per_device_train_batch_size=4,
        save_strategy="no",
    )
    check_continuation({"visits": visits}, [resumed.position()], 4, 3, warmup_steps=2)


def test_a_last_round_of_repeats_on_one_rank_is_resumed(ranks):
    """The first rank must not end the epoch alone and wait for the other in the middle of a step."""
    for results in ranks:
        last = results["last round"]
        assert last["last"] == [8, 8, 1.0]
        assert last["made"] == [60]
        assert last["scores"].isfinite().all()


def until(position, step):
    """What a run had visited when it made its checkpoint after a step."""
    visits = {}
    for epoch, seen, at, _ in position["places"]:
        if at < step:
            visits[epoch] = position["visits"][epoch][: seen + 4]
    return {"visits": visits}
