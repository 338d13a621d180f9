"""Ultralytics' DDP on two real processes, started by the script that Ultralytics writes."""

import re

import pytest
import torch
from ultralytics import YOLO

import infobatch
from infobatch.policies import AfssPrune
from ultralytics_pictures import IMAGES, SIDE, draw
from ultralytics_ranks import RANKS, Measuring, Noting

pytestmark = pytest.mark.filterwarnings("ignore::Warning:ultralytics", "ignore::Warning:torch")
EPOCHS, BATCH = 4, 4
FULL = -(-IMAGES // BATCH)  # batches


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return {
        "data": str(draw(folder / "data")),
        "project": str(folder),
        "epochs": EPOCHS,
        "imgsz": SIDE,
        "batch": BATCH,
        "nbs": BATCH,  # a step of the optimizer after each batch
        "device": "cpu",
        "optimizer": "SGD",
        "lr0": 1e-3,
        "warmup_epochs": 0,
        "close_mosaic": 1,
        "amp": False,
        "plots": False,
        "save_period": 1,
    }


def train(settings, trainer, name, model="yolo11n.yaml", **others):
    """Train in two processes; return the trainer here, and what both of them have noted."""
    yolo = YOLO(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yolo.train(trainer=trainer, **{**settings, "name": name, **others})
    kind = "resumed" if others.get("resume") else "whole"
    files = [yolo.trainer.save_dir / f"{kind}-{rank}.pt" for rank in range(RANKS)]
    return yolo.trainer, [torch.load(file, weights_only=False) for file in files]


def numbers(paths):
    return [int(re.search(r"(\d+)\.png", path)[1]) for path in paths]


def test_two_processes_share_the_epochs(settings, capfd):
    """With a class that no module has."""
    pruned = Noting.with_options(policy="mean", delta=1.0)
    trainer, notes = train(settings, pruned, "shared")
    output = capfd.readouterr().out
    assert "recovering from last.pt" in output
    for epoch in range(EPOCHS):
        (order, _), (other, _) = (note["plans"][epoch] for note in notes)
        assert torch.equal(order, other)
        for rank, note in enumerate(notes):
            visited = numbers(note["files"][epoch])
            share = order.tolist()[rank::RANKS]
            assert visited[: len(share)] == share
            assert len(visited) == -(-len(order) // RANKS)
            assert note["batches"][epoch] == -(-len(visited) // (BATCH // RANKS))
        assert (len(order) < IMAGES) == (epoch > 0)
    for note in notes:
        assert note["checked"] == notes[0]["batches"][1]  # the gradient of every step
        torch.testing.assert_close(note["scores"], notes[0]["scores"], rtol=0, atol=0)
        torch.testing.assert_close(note["weights"], notes[0]["weights"], rtol=0, atol=0)
        assert note["savings"] == str(trainer.train_data.savings)
        assert torch.equal(note["broken"], note["plans"][2][0])  # repeated with the same images
    assert torch.isfinite(notes[0]["scores"]).all()
    assert sum(note["divided"] for note in notes) > 1  # batches with different weights
    # What is left in the process that started the others.
    data = trainer.train_data
    assert data.savings.made == sum(len(notes[0]["plans"][epoch][0]) for epoch in range(EPOCHS))
    torch.testing.assert_close(data.scores, notes[0]["scores"], rtol=0, atol=0)
    assert output.count(str(data.savings)) == 1  # said by the first process alone
    # A checkpoint continues on both.
    middle = trainer.wdir / "epoch1.pt"
    state = torch.load(middle, weights_only=False)["infobatch"]
    twin = infobatch.Pruner(IMAGES, EPOCHS, policy="mean", delta=1.0)
    twin.load_state_dict(state)
    resumed, after = train(settings, pruned, "shared", model=middle, resume=True)
    for note in after:
        assert list(note["plans"]) == [2, 3]
        assert note["plans"][2][0].tolist() == twin.plan.order.tolist()
        assert note["plans"][2][0].tolist() == notes[0]["plans"][2][0].tolist()
    assert len(resumed.train_data.savings.epochs) == EPOCHS


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_afss_on_two_processes(settings):
    """Each measures its part, and both know all; patience ends the training of both."""
    rule = AfssPrune(keep_easy=0.5)
    trainer, notes = train(
        settings, Measuring.with_options(policy=rule), "afss", epochs=12, patience=4
    )
    lengths = [epoch.planned for epoch in trainer.train_data.savings.epochs]
    assert lengths == [IMAGES] * 3 + [IMAGES // 2] * 2
    assert trainer.train_data.savings.refreshed == 2 * IMAGES  # in epochs 2 and 4
    for note in notes:
        assert note["epochs"] == len(lengths)
        assert note["savings"] == str(trainer.train_data.savings)
        measured, alone = note["qualities"]
        torch.testing.assert_close(measured, alone, rtol=0, atol=0)
        torch.testing.assert_close(note["scores"], notes[0]["scores"], rtol=0, atol=0)
