"""cifar10's fast network: its whitening layer, its precision, its augmentation and its settings."""

import re

import pytest
import torch
from torch.nn import functional

from infobatch.lab.recipes.airbench import Airbench, parse_widths, whitening_filters
from infobatch.lab.recipes.augmentation import shifted_and_alternately_flipped
from infobatch.lab.recipes.cifar10 import standardised
from infobatch.lab.task import load_task
from lab_runs import compare
from recipe_data import DATA, needs_data

WIDTHS = (32, 16, 16)
SMALL = {"network": "airbench", "widths": "16/16/16"}


def pictures(count=200, side=32):
    """Images whose neighbouring pixels are alike, as in photographs."""
    coarse = torch.rand(count, 3, side // 4, side // 4)
    smooth = functional.interpolate(coarse, size=(side, side), mode="bilinear")
    return (255 * (0.9 * smooth + 0.1 * torch.rand_like(smooth))).to(torch.uint8)


# The network.


def test_filters_whiten_patches():
    images = standardised(pictures())
    filters = whitening_filters(images)
    assert filters.shape == (24, 3, 2, 2)
    assert torch.equal(filters[12:], -filters[:12])
    outputs = functional.conv2d(images, filters[:12]).transpose(0, 1).flatten(1)
    spread = outputs @ outputs.T / outputs.shape[1]
    # The epsilon keeps rare directions from being stretched to 1.
    assert torch.allclose(spread - spread.diag().diag(), torch.zeros(12, 12), atol=1e-3)
    assert ((spread.diag() > 0.8) & (spread.diag() < 1.001)).all()
    patches = functional.unfold(images, 2).transpose(1, 2).flatten(0, 1)
    raw = patches.T @ patches / len(patches)
    assert raw.diag().min() < 2 * (raw - raw.diag().diag()).max(), "they were correlated before"


def test_the_whitening_layer_is_not_trained():
    model = Airbench(standardised(pictures()), WIDTHS)
    assert not any("filters" in name for name, _ in model.named_parameters())
    assert "filters" in model.state_dict(), "a checkpoint restores it"
    before = model.filters.clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    functional.cross_entropy(model(standardised(pictures(8))), torch.arange(8)).backward()
    optimizer.step()
    assert torch.equal(model.filters, before)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_convolutions_start_by_handing_on_their_inputs():
    model = Airbench(standardised(pictures()), WIDTHS)
    first, features = model.groups[0].first, torch.randn(2, 24, 7, 7)
    assert torch.equal(first(features)[:, :24], features)
    fewer = model.groups[1].first  # 32 channels in, 16 out
    features = torch.randn(2, 32, 7, 7)
    assert torch.equal(fewer(features), features[:, :16])


def test_bfloat16_is_only_in_the_convolutions():
    images = standardised(pictures(64))
    exact = Airbench(images, WIDTHS)
    rough = Airbench(images, WIDTHS, "bfloat16")
    rough.load_state_dict(exact.state_dict())
    expected, logits = exact(images), rough(images)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, expected)
    error = (logits - expected).norm() / expected.norm()
    assert error < 0.03
    assert len(logits.unique()) > 0.9 * logits.numel(), "not rounded to a few values"
    logits.sum().backward()
    for parameter in rough.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32


def test_widths():
    assert parse_widths("8/16/32") == (8, 16, 32)
    for text in ("8/16", "8/16/0", "8/16/x", "8/16/-4", ""):
        message = f"widths={text!r}, expected three numbers of channels, such as 64/128/128."
        with pytest.raises(ValueError, match=re.escape(message)):
            parse_widths(text)


# The augmentation.


def test_flips_alternate():
    images = pictures(300)
    epochs = []
    for epoch in range(4):
        torch.manual_seed(0)  # the same shifts
        epochs.append(shifted_and_alternately_flipped(images, 2, epoch))
    assert torch.equal(epochs[0], epochs[1].flip(3))
    assert torch.equal(epochs[0], epochs[2])
    assert torch.equal(epochs[1], epochs[3])
    even = shifted_and_alternately_flipped(images, 0, 0)
    flipped = (even == images.flip(3)).flatten(1).all(1)
    kept = (even == images).flatten(1).all(1)
    assert (flipped ^ kept).all()
    assert 120 < int(flipped.sum()) < 180


def test_shifts_reflect_the_border():
    images = pictures(200)
    padded = functional.pad(images.float(), [2] * 4, mode="reflect").to(torch.uint8)
    shifted = shifted_and_alternately_flipped(images, 2, 0)
    seen = set()
    for before, after in zip(padded, shifted, strict=True):
        crops = {
            (top, left)
            for top in range(5)
            for left in range(5)
            for crop in [before[:, top : top + 32, left : left + 32]]
            if torch.equal(crop, after) or torch.equal(crop.flip(2), after)
        }
        assert crops, "each image is a crop of itself"
        seen |= crops
    assert seen == {(top, left) for top in range(5) for left in range(5)}


# The recipe.


@needs_data("cifar10")
def test_settings_of_the_network():
    task = load_task("cifar10", data=DATA, smoke=True, options=SMALL)
    assert (task.epochs, task.batch_size, task.evaluate_every) == (16, 500, 16)
    assert task.learning_rate == 1.0
    stated = SMALL | {"epochs": "7", "batch_size": "250", "optimizer": "adamw"}
    task = load_task("cifar10", data=DATA, smoke=True, options=stated)
    assert (task.epochs, task.batch_size, task.evaluate_every) == (7, 250, 7)
    assert task.learning_rate == 4e-3
    other = load_task("cifar10", data=DATA, smoke=True)
    assert (other.epochs, other.batch_size, other.evaluate_every) == (12, 128, 4)


@needs_data("cifar10")
def test_losses_are_smoothed_and_scores_reach_zero():
    options = SMALL | {"score": "gradient"}
    task = load_task("cifar10", data=DATA, smoke=True, options=options)
    images, labels = task.data()[0][:32]
    model = task.model()
    torch.manual_seed(1)
    result = task.losses(model, (images, labels))
    torch.manual_seed(1)
    logits = model(standardised(shifted_and_alternately_flipped(images, 2, 0)))
    expected = functional.cross_entropy(logits, labels, label_smoothing=0.2, reduction="none")
    assert torch.allclose(result.losses, expected)

    class Learned(torch.nn.Module):
        """Predicts exactly what is asked of it, so that nothing is left to learn."""

        def forward(self, images):
            return (0.8 * functional.one_hot(labels, 10) + 0.02).log()

    learned = task.losses(Learned(), (images, labels))
    assert learned.losses.min() > 0.8, "a smoothed loss has a floor"
    assert learned.scores.max() < 1e-6


@needs_data("cifar10")
def test_an_epoch_begins_with_its_flips():
    task = load_task("cifar10", data=DATA, smoke=True, options=SMALL)
    batch, model = task.data()[0][:32], task.model().eval()
    losses = []
    for epoch in (0, 1, 2):
        task.begin_epoch(epoch)
        torch.manual_seed(1)
        losses.append(task.losses(model, batch).losses)
    assert torch.equal(losses[0], losses[2])
    assert not torch.equal(losses[0], losses[1])


# After an epoch of eight steps the gradients' sizes are still alike.
@pytest.mark.filterwarnings("ignore:AutoPrune.* leaves samples out practically at random")
@needs_data("cifar10")
def test_compares(tmp_path):
    arms = "full,auto:gradient=score:floor=0.1"
    options = SMALL | {"score": "gradient", "precision": "bfloat16"}
    results = compare(tmp_path, arms, 1, "cifar10", data=DATA, options=options, smoke=True)
    full, auto = sorted(results["runs"], key=lambda run: run["saved_fraction"])
    assert full["saved_fraction"] == 0
    assert 0 < auto["saved_fraction"] < 1
    assert auto["history"][0]["metric"] is None, "evaluated only at the end"
    assert auto["history"][-1]["metric"] is not None
