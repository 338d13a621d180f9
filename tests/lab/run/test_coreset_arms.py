"""Arms that train on a coreset: their names, what they train on, and what is counted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from infobatch import PerSample
from infobatch.lab.run.arms import Arm, leader_of, parse_arms
from infobatch.lab.run.coreset_spec import CoresetSpec
from infobatch.lab.run.weighted import Weighted, WithWeights, scaled
from infobatch.policies import MeanPrune, NoPrune
from lab_runs import compare

TASK = (
    (Path(__file__).parents[2] / "support/tiny_task.py").read_text()
    + """

def labels(data):
    return [int(data[index][1]) for index in range(len(data))]
"""
)


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "classified_task.py"
    path.write_text(TASK)
    return path


def policy(text):
    return Arm(text).policy(num_samples=100, passes=1000, epochs=10, budget=None)


def test_names():
    arm = Arm("coreset:el2n@0.3")
    assert arm.coreset == CoresetSpec("coreset:el2n@0.3", "el2n", 0.3)
    assert (arm.rule, arm.prunes, arm.follows) == ("full", False, False)
    assert policy(arm.name) == NoPrune()
    arm = Arm(
        "coreset:ccs@0.1:networks=4:proxy_epochs=2:balanced=False:beta=0.2+mean:ratio=0.6:delta=1"
    )
    assert arm.coreset.options == {"beta": 0.2}
    assert (arm.coreset.networks, arm.coreset.proxy_epochs, arm.coreset.balanced) == (4, 2, False)
    assert policy(arm.name) == MeanPrune(0.6)
    assert (arm.delta, arm.prunes) == (1.0, True)
    assert Arm("infobatch").coreset is None
    assert leader_of(parse_arms("full,coreset:el2n@0.3,infobatch,random")) == Arm("infobatch")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("coreset:kcenter@0.3", "there is no coreset method 'kcenter'. Expected one of random, "),
        (
            "coreset:el2n",
            "whose share must be above 0 and at most 1. Expected coreset:METHOD@FRACTION",
        ),
        ("coreset:el2n@30", "whose share must be above 0"),
        ("coreset:el2n@0.3:beta=1", "el2n has no option 'beta', or it lacks a value"),
        ("coreset:el2n@0.3:networks=0", "networks must be an integer >= 1"),
        ("coreset:el2n@0.3+short", "short cannot be trained on a coreset"),
        ("coreset:el2n@0.3+coreset:el2n@0.3", "cannot be trained on a coreset"),
        ("coreset:el2n@0.3+fill", "There is no arm 'fill'"),
    ],
)
def test_what_raises(text, words):
    with pytest.raises(ValueError, match=r"--arms|no arm") as error:
        parse_arms(f"full,{text}")
    assert words in str(error.value)


def test_a_comparison_with_coresets(task, tmp_path):
    """60 samples, 4 epochs; the proxies of el2n and margin take 1 and 2 epochs, and 2 looks each.

    A look at a sample, which is a forward pass without gradients, counts as a third of a pass.
    """
    arms = "full,coreset:random@0.3,coreset:margin@0.3,coreset:el2n@0.3,coreset:craig@0.3+infobatch"
    results = compare(tmp_path / "out", arms, 1, task, lengths=(0.5, 1.0))
    runs = {(run["arm"], run["length"]): run for run in results["runs"]}
    assert len(runs) == 10

    def forwarded(arm, length=1.0):
        return runs[f"coreset:{arm}", length]["costs"]["samples_forwarded"]

    assert forwarded("random@0.3") == 4 * 18
    assert forwarded("random@0.3", 0.5) == 2 * 18
    assert forwarded("margin@0.3") == 4 * 18 + 2 * 60 + 2 * 60 // 3
    assert forwarded("margin@0.3", 0.5) == 2 * 18 + 2 * 60 + 2 * 60 // 3
    assert forwarded("el2n@0.3") == 4 * 18 + 60 + 2 * 60 // 3
    run = runs["coreset:margin@0.3", 1.0]
    assert run["num_samples"] == 60
    assert run["full_passes"] == 240
    assert run["saved_fraction"] == pytest.approx(1 - (72 + 160) / 240)
    assert run["costs"]["selection_passes"] == 160
    assert 0 < run["costs"]["selection_seconds"] < run["costs"]["seconds"]
    assert run["costs"]["samples_backpropagated"] == 72 + 120
    assert runs["full", 1.0]["costs"]["selection_passes"] == 0
    # CRAIG and margin share a proxy, and both lengths share a subset.
    folder = tmp_path / "out/selections"
    names = sorted(path.name for path in folder.iterdir() if path.suffix == ".npz")
    assert names == [
        "coreset_craig@0.3-0.npz",
        "coreset_el2n@0.3-0.npz",
        "coreset_margin@0.3-0.npz",
        "coreset_random@0.3-0.npz",
    ]
    assert len(list(folder.glob("proxy-1-1-0-*.pt"))) == 1
    (shared,) = folder.glob("proxy-2-1-0-*.pt")
    with np.load(folder / "coreset_margin@0.3-0.npz") as stored:
        assert len(stored["index"]) == 18
        about = json.loads(str(stored["about"]))
    assert about["cost"]["samples_forwarded"] == 240
    # A subset that was chosen is not chosen again, and the result is the same.
    shared.unlink()
    result = tmp_path / "out/runs/coreset_margin_0.3-1-0/result.json"
    before = json.loads(result.read_text())
    result.unlink()
    compare(tmp_path / "out", arms, 1, task, lengths=(0.5, 1.0))
    again = json.loads(result.read_text())
    assert again["metric"] == before["metric"]
    assert [epoch["train_loss"] for epoch in again["history"]] == [
        epoch["train_loss"] for epoch in before["history"]
    ]
    assert not shared.exists()


def test_a_task_without_labels_can_only_draw(tmp_path):
    path = tmp_path / "unlabelled_task.py"
    path.write_text(TASK.partition("def labels")[0])
    results = compare(tmp_path / "out", "full,coreset:random@0.5", 1, path)
    assert len(results["runs"]) == 2
    with pytest.raises(AssertionError, match=r"needs the classes of the training samples. Define"):
        compare(tmp_path / "other", "full,coreset:el2n@0.5", 1, path)


def test_a_subset_of_other_settings_raises(task, tmp_path):
    compare(tmp_path / "out", "full,coreset:random@0.5", 1, task)
    task.write_text(TASK + "\nbatch_size = 16\n")
    (tmp_path / "out/results.json").unlink()
    for folder in (tmp_path / "out/runs").iterdir():
        (folder / "result.json").unlink()
    with pytest.raises(
        AssertionError, match="was chosen with different settings: batch_size = 8 there"
    ):
        compare(tmp_path / "out", "full,coreset:random@0.5", 1, task)


def test_weights_travel_with_the_batch():
    data = [(torch.tensor([float(i)]), i) for i in range(4)]
    weighted = Weighted(data, np.array([1.0, 1.0, 4.0, 2.0]))
    (x, y), weights = WithWeights(None)(weighted.__getitems__([2, 0]))
    assert x.tolist() == [[2.0], [0.0]]
    assert y.tolist() == [2, 0]
    assert weights.tolist() == [2.0, 0.5]
    assert weighted[3][1] == 1.0
    assert len(weighted) == 4
    losses = torch.tensor([1.0, 3.0], requires_grad=True)
    plain = scaled(losses, weights)
    assert plain.losses.tolist() == [2.0, 1.5]
    assert plain.scores.tolist() == [1.0, 3.0]
    assert not plain.scores.requires_grad
    sizes = {"gradient": torch.tensor([5.0, 6.0])}
    scored = scaled(PerSample(losses, torch.tensor([7.0, 8.0]), sizes), weights)
    assert scored.scores.tolist() == [7.0, 8.0]
    assert scored.extras == sizes


def test_the_weights_of_a_subset_reach_the_training(task, tmp_path):
    """Only their proportions matter: all 1 and all 2 train the same model, those of CRAIG another."""

    def train_losses(out, weights):
        if weights is not None:
            (out / "selections").mkdir(parents=True)
            with np.load(tmp_path / "craig/selections/coreset_craig@0.3-0.npz") as stored:
                changed = {**stored, "weight": np.full(18, weights, np.float32)}
            np.savez(out / "selections/coreset_craig@0.3-0.npz", **changed)
        results = compare(out, "full,coreset:craig@0.3", 1, task)
        run = next(run for run in results["runs"] if run["arm"] == "coreset:craig@0.3")
        return [epoch["train_loss"] for epoch in run["history"]]

    craig = train_losses(tmp_path / "craig", None)
    with np.load(tmp_path / "craig/selections/coreset_craig@0.3-0.npz") as stored:
        assert stored["weight"].sum() == 60
    ones = train_losses(tmp_path / "ones", 1)
    twos = train_losses(tmp_path / "twos", 2)
    assert ones == twos
    assert all(weight != other for weight, other in zip(ones, craig, strict=True))
