"""Checkpoints that one rank takes alone, in real processes on gloo."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import infobatch
import saving_cases
from infobatch.distributed import communicator
from numbered import loss_of
from saving_cases import BATCH, EPOCHS, SIZE

CASES = Path(saving_cases.__file__)


def run_case(case, out):
    """Run a case on two ranks; return what each left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(CASES), case, str(out)],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=180)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)[-3000:]
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


def alone(epochs):
    """The same training in one process, with the batches of both ranks at once."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    for epoch in range(epochs):
        for index in pruner.batch_sampler(2 * BATCH):
            pruner.update(loss_of(torch.tensor(index).float(), epoch))
    return pruner


def test_between_epochs_one_rank_is_enough(tmp_path):
    first, second = run_case("between_epochs", tmp_path)
    straight = alone(EPOCHS)
    for result in (first, second):
        assert torch.equal(result["scores"], straight.scores)
        assert result["savings"] == str(straight.savings)
    assert len(first["states"]) == EPOCHS
    assert second["states"] == []
    for epoch, state in enumerate(first["states"]):
        expected = alone(epoch + 1)
        resumed = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
        resumed.load_state_dict(state)
        assert resumed.epoch == epoch + 1
        assert torch.equal(resumed.scores, expected.scores), "of both ranks"
        assert resumed.savings == expected.savings
        expected.set_epoch(epoch + 1)
        assert resumed.plan.order.tolist() == expected.plan.order.tolist()


@pytest.fixture(scope="module")
def in_mid_epoch(tmp_path_factory):
    return run_case("in_mid_epoch", tmp_path_factory.mktemp("in_mid_epoch"))


def test_in_the_middle_of_an_epoch_it_is_told_and_the_group_stays_usable(in_mid_epoch):
    first, second = in_mid_epoch
    assert len(first["errors"]) == 4
    assert second["errors"] == []
    for error in first["errors"]:
        assert error == (
            "state_dict() was called by 1 of 2 ranks; the others did not call it within 1 seconds. "
            "In the middle of an epoch every rank has to call it at the same step, because each "
            "knows only its own losses. Call it on every rank and write one result, or save after "
            "the epoch's last update, where one rank is enough, or pass gather=False to save "
            "without the other ranks' losses of this epoch. If ranks may arrive further apart, pass "
            "meeting_timeout=."
        )
    straight = alone(2)
    for result in (first, second):
        assert torch.equal(result["scores"], straight.scores), "nothing was lost by it"
        assert result["savings"] == str(straight.savings)
    for save, (state, other) in enumerate(zip(first["together"], second["together"], strict=True)):
        epoch, steps = save // 2, (3, 5)[save % 2]
        assert torch.equal(state["losses"], other["losses"])
        resumed = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
        resumed.load_state_dict(state)
        assert resumed.epoch == epoch
        visited = resumed.plan.order[: 2 * BATCH * steps]
        assert list(resumed.sampler) == resumed.plan.order[2 * BATCH * steps :].tolist()
        expected = loss_of(visited.float(), epoch)
        assert torch.allclose(resumed.scores[visited], expected), "of both ranks"


def test_a_rank_that_comes_at_the_last_moment_is_not_left_alone(monkeypatch):
    """It has seen all ranks and continues with the exchange, so the one whose time is up must, too."""

    class LateStore:
        def __init__(self):
            self.store, self.late = dist.HashStore(), 1

        def add(self, key, amount):
            if amount < 0 and self.late:
                self.late = 0
                assert self.store.add(key, 1) == 2, "the other rank arrives"
            return self.store.add(key, amount)

    store = LateStore()
    monkeypatch.setattr(communicator, "has_process_group", lambda: True)
    monkeypatch.setattr(communicator, "_meetings", {})
    monkeypatch.setattr(dist.distributed_c10d, "_get_process_group_store", lambda group: store)
    monkeypatch.setattr(dist.distributed_c10d, "_get_process_group_name", lambda group: "pair")
    pair = communicator.Communicator(2, object(), meeting_timeout=0)
    pair.meet("state_dict()")
    assert int(store.add("infobatch/meeting/0", 0)) == 2
    with pytest.raises(RuntimeError, match=r"^state_dict\(\) was called by 1 of 2 ranks"):
        pair.meet("state_dict()")
    assert int(store.add("infobatch/meeting/1", 0)) == 0, "as if it had never come"


def test_without_the_others_losses_of_the_epoch(in_mid_epoch):
    """gather=False, on rank 1 alone after six steps of the second epoch."""
    _, second = in_mid_epoch
    resumed = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    resumed.load_state_dict(second["alone"])
    visited = resumed.plan.order[: 2 * BATCH * 6]
    assert list(resumed.sampler) == resumed.plan.order[2 * BATCH * 6 :].tolist()
    share, others = visited[1::2], visited[::2]
    assert torch.allclose(resumed.scores[share], loss_of(share.float(), 1))
    assert torch.allclose(resumed.scores[others], loss_of(others.float(), 0)), "the old scores"
