"""Every recipe end to end, for real but short: trained, measured, stopped and resumed, by two ranks."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from infobatch.lab.datasets.folder import DATA_VARIABLE
from infobatch.lab.recipes.registry import load_recipe
from infobatch.lab.run import training
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.smoke import SMOKE_EPOCHS
from infobatch.lab.task import TaskError, load_task
from recipe_data import DATA, EVERY_RECIPE, EVERY_TRAINING, ROOT, needs_data


def begin(name, folder, *, arm="infobatch", seed=0, **options):
    task = load_task(name, data=DATA, smoke=True, options=options)
    return Run(task, settings_of(task, arm=arm, seed=seed, smoke=True, options=options), folder)


def snapshot(model):
    """A copy of a model's state, extra state included."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in model.state_dict().items()
    }


def assert_same_state(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, dict):
            assert_same_state(value, second[name])
        else:
            assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("name", EVERY_TRAINING)
def test_trains_by_both_arms(name, tmp_path):
    run = begin(name, tmp_path / "full", arm="full")
    full = run.train(lambda standing: None)
    assert full.saved_fraction == 0
    assert len(full.history) == SMOKE_EPOCHS
    assert full.history[-1].train_loss < full.history[0].train_loss

    pruned = begin(name, tmp_path / "infobatch")
    result = pruned.train(lambda standing: None)
    assert 0 < result.saved_fraction < 1
    assert math.isfinite(result.metric)
    assert all(math.isfinite(value) for value in result.extra_metrics.values())
    further = {
        "diffusion": {"frechet_distance"},
        "fashion": {"cross-entropy"},
        "cifar10": {"cross-entropy"},
    }
    assert set(result.extra_metrics) == further.get(name, set())

    details = pruned.details()
    hardest = int(details["hardest"][0])
    shown = pruned.shown(hardest)
    if isinstance(shown, str):
        assert len(shown) > 10
    else:
        assert np.asarray(shown).dtype == np.uint8
        assert np.asarray(shown).max() > np.asarray(shown).min()
    if "labels" in details:
        assert len(details["labels"]) == pruned.num_samples
        assert len(set(details["labels"].tolist())) > 1


@pytest.mark.parametrize("name", EVERY_RECIPE)
def test_evaluation_changes_nothing(name, tmp_path):
    run = begin(name, tmp_path)
    run.model.train()
    state, random = snapshot(run.model), torch.get_rng_state()
    part = Subset(run.test_set, range(16))
    value = run.task.evaluate(run.model, part)
    assert run.task.evaluate(run.model, part) == value, "measured twice, the same"
    assert run.model.training, "the mode is as it was"
    assert_same_state(snapshot(run.model), state)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in run.model.parameters())


@pytest.mark.parametrize("name", EVERY_RECIPE)
def test_evaluates_on_the_models_device(name, tmp_path):
    """On the meta device, which holds no numbers: the measurement gets as far as reading one."""
    run = begin(name, tmp_path)
    part = Subset(run.test_set, range(16))
    run.model.to("meta")
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        run.task.evaluate(run.model, part)
    assert re.search(r"item\(\) cannot be called on meta|copy out of meta", str(caught.value))


def test_image_recipes_score_by_the_gradient_where_asked(tmp_path):
    by_loss = begin("fashion", tmp_path / "loss", arm="noise")
    by_gradient = begin(
        "fashion", tmp_path / "gradient", arm="noise:gradient=score", score="gradient"
    )
    assert 0 < by_gradient.train(lambda standing: None).saved_fraction < 1
    model, results = by_gradient.model.eval(), []
    for run in (by_loss, by_gradient):
        train_set, _ = run.task.data()
        torch.manual_seed(0)  # of the augmentation
        results.append(run.task.losses(model, train_set[torch.arange(64)]))
    losses, gradients = results
    assert torch.equal(losses.losses, gradients.losses)
    assert torch.equal(losses.scores, losses.losses)
    assert gradients.scores.max() <= 2**0.5
    missed = -torch.expm1(-losses.scores)  # 1 − p(label), one component of the gradient
    assert (gradients.scores >= missed - 1e-6).all()


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("diffusion", {}),
        ("fashion", {"optimizer": "lamb", "mix": "cutmix"}),
        pytest.param("bccd", {"scale": "2"}, marks=needs_data("bccd"), id="bccd"),
        pytest.param("cifar10", {"optimizer": "lars"}, marks=needs_data("cifar10")),
        pytest.param(
            "cifar10",
            {"network": "airbench", "widths": "16/16/16", "precision": "bfloat16"},
            marks=needs_data("cifar10"),
        ),
    ],
)
def test_resumes_bit_for_bit(name, options, tmp_path, monkeypatch):
    straight = begin(name, tmp_path / "straight", **options)
    expected = straight.train(lambda standing: None)

    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    reports = 0

    def stop_in_the_second_epoch(standing):
        nonlocal reports
        reports += 1
        if reports == 11:
            raise StopError

    with pytest.raises(StopError):
        begin(name, tmp_path / "stopped", **options).train(stop_in_the_second_epoch)
    torch.manual_seed(12345)  # whatever happens in between
    resumed = begin(name, tmp_path / "stopped", **options)
    result = resumed.train(lambda standing: None)
    assert result.metric == expected.metric
    assert result.extra_metrics == expected.extra_metrics
    assert [epoch.train_loss for epoch in result.history] == [
        epoch.train_loss for epoch in expected.history
    ]
    assert_same_state(snapshot(resumed.model), snapshot(straight.model))


def two_processes(name, out, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "infobatch.lab.run", name, "--smoke", "--out", str(out), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if DATA is not None:
        environment[DATA_VARIABLE] = str(DATA)
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads((out / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_RECIPE)
def test_two_processes(name, tmp_path):
    result = two_processes(name, tmp_path)
    assert math.isfinite(result["metric"])
    assert 0 < result["saved_fraction"] < 1
    assert result["num_samples"] * 3 == result["full_passes"]


@pytest.mark.parametrize(
    "name",
    [
        "cifar10",
        "covertype",
        "camvid",
        "mae",
        "alpaca",
        "gsm8k",
        pytest.param("bccd", marks=needs_data("bccd")),
    ],
)
@pytest.mark.parametrize("folder", [None, Path("nowhere")])
def test_missing_data_say_how_to_get_them(name, folder, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(FileNotFoundError) as caught:
        load_recipe(name, data=folder)
    message = str(caught.value)
    assert "is missing" in message
    assert "https://" in message
    assert ("nowhere" if folder else "--data DIR or $INFOBATCH_DATA") in message
    with pytest.raises(TaskError, match="is missing"):
        load_task(name, data=folder)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "fashion",
            {"optimizer": "adam"},
            "optimizer='adam' is not one of sgd, adamw, lars, lamb.",
        ),
        ("fashion", {"mix": "cut"}, "mix='cut' is not one of none, mixup, cutmix."),
        ("fashion", {"score": "norm"}, "score='norm' is not one of loss, gradient."),
        (
            "fashion",
            {"mix": "mixup", "score": "gradient"},
            "score='gradient' is not possible with mix='mixup': mixed images have their own "
            "score. Use mix=none, or leave score out.",
        ),
        (
            "fashion",
            {"colour": "red"},
            "Recipe 'fashion' has no option 'colour'. Expected one of optimizer, mix, score, epochs, network, images, wrong_labels.",
        ),
        (
            "diffusion",
            {"prediction": "v"},
            "prediction='v' is not one of epsilon, v_prediction, sample.",
        ),
        ("diffusion", {"min_snr": "-1"}, "min_snr=-1.0, expected a number >= 0; 0 turns it off."),
        ("diffusion", {"min_snr": "much"}, "Recipe 'diffusion': min_snr='much' is not a float."),
        ("alpaca", {"rows": "all"}, "rows='all' is not one of random_9k, dq_k5_1k."),
    ],
)
def test_options_that_are_not_there(name, options, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        load_recipe(name, options=options)
    assert str(caught.value) == message


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "infobatch.lab.recipes.mae", raising=False)
    with pytest.raises(
        ImportError,
        match=r"needs the package 'transformers'.*'\.\[recipes\]' in a clone of infobatch",
    ):
        load_recipe("mae", data=DATA)


def test_a_missing_optimizer_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    recipe = load_recipe("fashion", options={"optimizer": "lamb"})
    with pytest.raises(ValueError, match=r"optimizer='lamb' needs the package 'pytorch_optimizer'"):
        recipe.optimizer(recipe.model(), 0.1)


@pytest.mark.parametrize("name", EVERY_RECIPE)
def test_settings_are_stated(name):
    task = load_task(name, data=DATA)
    assert task.margin > 0
    assert task.metric
    assert task.epochs > 1
    lower = {"diffusion", "alpaca", "gsm8k"}
    assert task.higher_is_better is (name not in lower)
    page = (ROOT / "docs" / "recipes.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` | "))
    assert float(line.split("|")[-2]) == task.margin


@needs_data("cifar10")
@pytest.mark.parametrize(
    ("network", "parameters"),
    [("resnet", 308_650), ("small_resnet", 78_042), ("vit", 311_146), ("airbench", 569_344)],
)
def test_cifar10_networks_and_sizes(network, parameters):
    options = {"network": network, "images": "300", "epochs": "5"}
    task = load_task("cifar10", data=DATA, options=options)
    assert task.epochs == 5
    assert len(task.data()[0]) == 300
    model = task.model()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("options", "parameters"),
    [({}, 33_338), ({"network": "cnn"}, 33_338), ({"network": "small_resnet"}, 77_754)],
)
def test_fashion_networks(options, parameters):
    task = load_task("fashion", options=options)
    model = task.model()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    images = task.data()[0].tensors[0][:2]
    assert model(images).shape == (2, 10)


def test_a_fashion_network_that_does_not_exist():
    message = "network='resnet' is not one of cnn, small_resnet."
    with pytest.raises(ValueError, match=re.escape(message)):
        load_recipe("fashion", options={"network": "resnet"})


@needs_data("cifar10")
@needs_data("covertype")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar10", {"images": "0"}, "images=0 must be an integer from 1 to 50,000."),
        ("cifar10", {"images": "50001"}, "images=50001 must be an integer from 1 to 50,000."),
        ("cifar10", {"epochs": "-1"}, "epochs=-1 must be an integer >= 0."),
        ("cifar10", {"batch_size": "-1"}, "batch_size=-1 must be an integer >= 0."),
        ("cifar10", {"precision": "half"}, "precision='half' is not one of float32, bfloat16."),
        (
            "cifar10",
            {"widths": "64/128"},
            "widths='64/128', expected three numbers of channels, such as 64/128/128.",
        ),
        ("mae", {"images": "20001"}, "images=20001 must be an integer from 1 to 20,000."),
        ("diffusion", {"images": "12001"}, "images=12001 must be an integer from 1 to 12,000."),
        ("camvid", {"scale": "5"}, "scale=5 must be an integer from 1 to 4."),
        (
            "cifar10",
            {"network": "vgg"},
            "network='vgg' is not one of resnet, small_resnet, vit, airbench.",
        ),
        ("covertype", {"rows": "-1"}, "rows=-1, expected a number of rows, or 0 for all."),
    ],
)
def test_sizes_that_do_not_exist(name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_recipe(name, data=DATA, options=options)


@needs_data("mae")
@pytest.mark.parametrize("name", ["mae", "diffusion"])
def test_fewer_images(name):
    train, test = load_recipe(name, data=DATA, options={"images": "300", "epochs": "5"}).data()
    everything, same = load_recipe(name, data=DATA).data()
    assert len(train) == 300
    assert torch.equal(train.tensors[0], everything.tensors[0][:300])
    assert torch.equal(test.tensors[0], same.tensors[0])


@needs_data("mae")
def test_the_probe_has_images_of_its_own_however_many_are_trained_on():
    recipe = load_recipe("mae", data=DATA, options={"images": "300"})
    recipe.data()
    whole = load_recipe("mae", data=DATA)
    train, _ = whole.data()
    assert torch.equal(recipe.probe_train.tensors[0][:100], train.tensors[0][300:400])


@needs_data("camvid")
def test_smaller_scenes():
    (whole, _), (half, _) = (
        load_recipe("camvid", data=DATA, smoke=True, options=options).data()
        for options in ({}, {"scale": "2"})
    )
    images, masks = half.tensors
    assert images.shape[2:] == masks.shape[1:] == (90, 120)
    assert masks.equal(whole.tensors[1][:, ::2, ::2])
    block = whole.tensors[0][0, :, 10:12, 20:22].float().mean((1, 2))
    assert (images[0, :, 5, 10] - block).abs().max() <= 0.5


@needs_data("covertype")
def test_fewer_rows_of_covertype():
    everything = load_recipe("covertype", data=DATA)
    fewer = load_recipe("covertype", data=DATA, options={"rows": "1000"})
    assert fewer.data()[0].rows == everything.data()[0].rows[:1000]
    assert fewer.data()[1].rows == everything.data()[1].rows
