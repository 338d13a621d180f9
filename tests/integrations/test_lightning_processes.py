"""Lightning's DDP and Fabric on two real processes, against one process with the whole batch."""

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import infobatch
import lightning_cases
from lightning_cases import EPOCHS, GLOBAL_BATCH, SIZE

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
]


def torchrun(case, out):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    run = subprocess.run(
        [*command, lightning_cases.__file__, case, str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    results = [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
    return results, run.stdout


def alone(schedule=False):
    """A plain loop in one process."""
    train_data, model = lightning_cases.pruned(), lightning_cases.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(train_data, GLOBAL_BATCH, sampler=train_data.sampler)
    if schedule:
        steps = EPOCHS * len(loader)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
        schedule = infobatch.paced(schedule, train_data)
    plans = []
    for _ in range(EPOCHS):
        for x, y, _ in loader:
            train_data.update((model(x).squeeze(1) - y) ** 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule:
                schedule.step()
        plans.append(train_data.plan.order)
    train_data.set_epoch(EPOCHS)
    return train_data, model, plans


def each_sample_once(results, plans, ranks=2):
    """No duplicates: what the ranks visit is the plan, but for one repeat where shares are uneven."""
    for epoch, plan in enumerate(plans):
        visits = [list(chain.from_iterable(result["visits"][epoch])) for result in results]
        assert len(set(map(len, visits))) == 1
        for rank, visited in enumerate(visits):
            share = plan.tolist()[rank::ranks]
            assert visited[: len(share)] == share
            assert len(visited) == -(-len(plan) // ranks)
    assert len(plans[1]) < SIZE


def test_ddp(tmp_path):
    results, output = torchrun("ddp", tmp_path)
    train_data, model, plans = alone(schedule=True)
    assert output.count("Saved") == 2  # two fits, said by rank 0 alone
    assert str(train_data.savings) in output
    for rank, result in enumerate(results):
        whole, resumed = result["whole"], result["resumed"]
        assert [len(whole["plans"][epoch]) for epoch in range(EPOCHS)] == list(map(len, plans))
        assert whole["savings"] == resumed["savings"] == str(train_data.savings)
        assert torch.allclose(whole["scores"], train_data.scores, rtol=1e-3, atol=1e-4)
        expected = nn.utils.parameters_to_vector(model.parameters())
        assert torch.allclose(whole["weights"], expected, rtol=1e-3, atol=1e-4)
        steps = EPOCHS * -(-SIZE // GLOBAL_BATCH)
        assert whole["estimate"] == whole["last"] == steps > whole["steps"]
        # Validation after every epoch, on Lightning's share of the data.
        assert [epoch for epoch, _ in whole["validated"]] == list(range(EPOCHS))
        assert {count for _, count in whole["validated"]} == {-(-SIZE // 2)}
        assert torch.equal(whole["weights"], resumed["weights"])
        assert torch.equal(whole["scores"], resumed["scores"])
        assert resumed["estimate"] == steps
        last = max(whole["visits"])
        assert whole["visits"][last] == resumed["visits"][last], rank
    each_sample_once([result["whole"] for result in results], plans)


def test_fabric_on_two_processes(tmp_path):
    results, _ = torchrun("fabric", tmp_path)
    train_data, model, plans = alone()
    for result in results:
        whole, resumed = result["whole"], result["resumed"]
        assert whole["savings"] == resumed["savings"] == str(train_data.savings)
        expected = nn.utils.parameters_to_vector(model.parameters())
        assert torch.allclose(whole["weights"], expected, rtol=1e-3, atol=1e-4)
        assert torch.equal(whole["weights"], resumed["weights"])
        assert torch.equal(whole["scores"], resumed["scores"])
    each_sample_once([result["whole"] for result in results], plans)


@pytest.mark.parametrize("stop", [3, 9, 11, 12, 13, 15])
def test_fabric_alone(stop, tmp_path):
    """Fabric counts epochs from 0 again after a resume; the data does not."""
    result = lightning_cases.fabric(Path(tmp_path), ranks=1, stop=stop)
    train_data, model, plans = alone()
    whole, resumed = result["whole"], result["resumed"]
    assert torch.equal(whole["weights"], nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(whole["weights"], resumed["weights"])
    assert torch.equal(whole["scores"], resumed["scores"])
    assert whole["savings"] == resumed["savings"] == str(train_data.savings)
    for epoch, plan in enumerate(plans):
        assert list(chain.from_iterable(whole["visits"][epoch])) == plan.tolist()
