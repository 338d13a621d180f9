"""The embedded data, and the published images that are not among them."""

import gzip
import re

import numpy as np
import pytest
import torch

from infobatch.lab.datasets import fashion
from infobatch.lab.recipes.fashion import Recipe
from infobatch.lab.run.data import data_of
from infobatch.lab.run.settings import settings_of
from infobatch.lab.task import TaskError, load_task


def test_embedded_data():
    train_x, train_y, test_x, test_y = fashion.load()
    assert train_x.shape == (12_000, 1, 28, 28)
    assert test_x.shape == (2_000, 1, 28, 28)
    assert train_y.bincount().tolist() == [1_200] * 10
    assert test_y.bincount().tolist() == [200] * 10
    assert train_x.mean().item() == pytest.approx(0, abs=1e-4)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with the embedded images among random ones, in the published format and sizes."""
    generator = np.random.default_rng(0)
    pixels, labels = fashion.embedded()
    folder = tmp_path_factory.mktemp("data")
    (folder / "fashion-mnist").mkdir()
    for name, own, count in (
        ("train", slice(12_000), 48_000),
        ("t10k", slice(12_000, None), 8_000),
    ):
        # A random image need not be a large file: only a few of its pixels differ.
        others = np.zeros((count, 28, 28), np.uint8)
        others[:, :2, :2] = generator.integers(0, 256, (count, 2, 2))
        images = np.concatenate([pixels[own], others])
        classes = np.concatenate([labels[own], generator.integers(0, 10, count).astype(np.uint8)])
        order = generator.permutation(len(images))
        for kind, values, header in (("images-idx3", images, 16), ("labels-idx1", classes, 8)):
            packed = gzip.compress(bytes(header) + values[order].tobytes(), 1)
            (folder / "fashion-mnist" / f"{name}-{kind}-ubyte.gz").write_bytes(packed)
    return folder


def test_fresh_images_are_none_of_the_embedded_ones_and_differ_from_seed_to_seed(published):
    recipe = Recipe(folder=published, images="fresh")
    sets = [recipe.data_of_seed(seed)[0].tensors for seed in (0, 1, 9)]
    assert [len(images) for images, _ in sets] == [5_000] * 3
    test_images = recipe.data_of_seed(0)[1].tensors[0]
    assert test_images.shape == (6_000, 1, 14, 14)
    assert torch.equal(recipe.data()[0].tensors[0], sets[0][0])
    assert torch.equal(recipe.data_of_seed(11)[0].tensors[0], sets[1][0])
    # Only the corner of our random images is not black.
    for images in (*(images for images, _ in sets), test_images):
        assert (images[:, :, 1:, 1:] == images[0, 0, -1, -1]).all()


def test_a_run_has_the_data_of_its_seed(published):
    options = {"images": "fresh"}
    task = load_task("fashion", data=published, options=options)
    first, second = (
        data_of(task, settings_of(task, arm="full", seed=seed))[0].tensors[0] for seed in (0, 1)
    )
    assert not torch.equal(first, second)


def test_a_share_of_the_training_labels_is_wrong_and_the_others_are_right():
    right = Recipe().data()
    wrong = Recipe(wrong_labels=0.1).data()
    again = Recipe(wrong_labels=0.1).data()
    differs = right[0].tensors[1] != wrong[0].tensors[1]
    assert differs.sum() == 500
    assert wrong[0].tensors[1].unique().tolist() == list(range(10))
    assert torch.equal(wrong[0].tensors[1], again[0].tensors[1])
    assert torch.equal(right[1].tensors[1], wrong[1].tensors[1]), "test labels stay"


def test_options_that_are_not_possible(tmp_path):
    with pytest.raises(TaskError, match=r"^wrong_labels=1\.0 must be a share from 0 to below 1\.$"):
        load_task("fashion", options={"wrong_labels": "1"})
    missing = re.escape(f"The data set 'fashion-mnist' is missing: {tmp_path}. Expected the folder")
    with pytest.raises(TaskError, match=missing):
        load_task("fashion", data=tmp_path, options={"images": "fresh"})
