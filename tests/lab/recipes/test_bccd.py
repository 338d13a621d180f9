"""The parts of the recipe ``bccd``: boxes that move with their pixels, the metric, and the published files."""

import sys
from importlib import metadata

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from infobatch.lab.datasets.readers import Bccd
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.task import TaskError, load_task
from recipe_data import DATA, needs_data

needs_bccd = needs_data("bccd")


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    plain = metadata.version

    def version(name):
        if name == "ultralytics":
            raise metadata.PackageNotFoundError(name)
        return plain(name)

    monkeypatch.setattr(metadata, "version", version)
    for name in ("infobatch.lab.recipes.bccd", "infobatch.integrations.ultralytics"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    text = r"found no ultralytics, expected ultralytics>=.*: pip install '\.\[ultralytics\]' in a clone"
    with pytest.raises(TaskError, match=text):
        load_task("bccd", data=DATA)


def test_the_published_folder(tmp_path):
    folder = tmp_path / "BCCD"
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    (folder / "ImageSets/Main/val.txt").write_text("cells_2\ncells_1\n")
    objects = {
        "cells_1": (("WBC", 64, 48, 128, 96), ("Platelets", 600, 400, 660, 480)),
        "cells_2": (),
    }
    for stem, boxes in objects.items():
        brightness = 200 if boxes else 100
        pixels = np.full((480, 640, 3), brightness, np.uint8)
        Image.fromarray(pixels).save(folder / "JPEGImages" / f"{stem}.jpg")
        rows = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
            f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for name, left, top, right, bottom in boxes
        )
        (folder / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{rows}</annotation>")
    images, boxes = Bccd(tmp_path).split("val")
    assert images.shape == (2, 3, 240, 320)
    assert images[:, 0, 0, 0].tolist() == [200, 100]
    expected = [[1, 0.15, 0.15, 0.1, 0.1], [2, 620 / 640, 440 / 480, 40 / 640, 80 / 480]]
    np.testing.assert_allclose(boxes[0], expected, rtol=1e-6)
    assert boxes[1].shape == (0, 5)


@needs_bccd
def test_the_archive():
    counts = {name: Bccd(DATA).split(name) for name in ("train", "val", "test")}
    assert [len(images) for images, _ in counts.values()] == [205, 87, 72]
    assert sum(len(rows) for _, boxes in counts.values() for rows in boxes) == 4886
    train, test = load_task("bccd", data=DATA).data()
    assert (len(train), len(test)) == (205, 159)
    image, boxes = load_task("bccd", data=DATA, options={"scale": "2"}).data()[0][0]
    assert image.shape == (3, 120, 160)
    assert torch.equal(boxes, train[0][1])


@needs_bccd
def test_boxes_move_with_their_pixels():
    from infobatch.lab.recipes.bccd import zoomed_and_flipped  # noqa: PLC0415 - needs Ultralytics

    torch.manual_seed(0)
    images = torch.full((32, 3, 240, 320), 183, dtype=torch.uint8)  # grey, as beyond the edges
    images[:, :, 60:120, 200:280] = 255
    boxes = torch.tensor([[[0, 240 / 320, 90 / 240, 80 / 320, 60 / 240], [-1.0] * 5]] * 32)
    moved, places = zoomed_and_flipped(images, boxes)
    assert moved.shape == (32, 3, 256, 320)
    assert (places[:, 1, 0] == -1).all()
    corners = []
    for image, (kind, x, y, width, height) in zip(moved, places[:, 0], strict=True):
        assert kind == 0
        rows, columns = (image[0] > 1.5).nonzero().unbind(1)
        seen = torch.stack([columns.min(), columns.max() + 1, rows.min(), rows.max() + 1])
        told = torch.stack([x - width / 2, x + width / 2, y - height / 2, y + height / 2])
        told = told * torch.tensor([320, 320, 256, 256])
        torch.testing.assert_close(seen.float(), told, atol=1.5, rtol=0)
        corners.append(told)
    assert torch.stack(corners).std(0).min() > 5, "they are in different places"


@needs_bccd
def test_a_box_that_is_hardly_visible_is_left_out():
    from infobatch.lab.recipes.bccd import zoomed_and_flipped  # noqa: PLC0415 - needs Ultralytics

    torch.manual_seed(0)
    images = torch.zeros(200, 3, 240, 320, dtype=torch.uint8)
    boxes = torch.tensor([[[0, 0.02, 0.5, 0.04, 0.1]]] * 200)
    _, places = zoomed_and_flipped(images, boxes)
    left_out = places[:, 0, 0] == -1
    assert 0 < left_out.sum() < 200
    assert (places[~left_out, 0, 3] > 0).all()


class Told(nn.Module):
    """A detector that returns prepared boxes with their classes, in pixels of what it sees."""

    def __init__(self, rows):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(()))
        self.rows = rows

    def forward(self, images):
        assert images.shape[1:] == (3, 256, 320)
        kinds = nn.functional.one_hot(self.rows[..., 0].long().clamp_min(0), 3)
        confident = kinds * (self.rows[..., :1] >= 0) * 0.9
        return (torch.cat([self.rows[..., 1:], confident], 2).transpose(1, 2),)


@needs_bccd
def test_metric_and_qualities_of_a_detector_that_finds_everything_or_a_half():
    task = load_task("bccd", data=DATA)
    boxes = torch.tensor(
        [
            [[0, 0.25, 0.25, 0.2, 0.2], [1, 0.75, 0.75, 0.2, 0.2]],
            [[0, 0.5, 0.5, 0.2, 0.2], [1, 0.2, 0.8, 0.2, 0.2]],
        ]
    )
    data = Tensors(torch.zeros(2, 3, 240, 320, dtype=torch.uint8), boxes)
    rows = boxes * torch.tensor([1, 320, 240, 320, 240])
    rows[..., 2] += 8  # the stripe above
    assert task.evaluate(Told(rows), data) == pytest.approx(99.5)  # as Ultralytics integrates it
    assert task.qualities(Told(rows), data).tolist() == [1, 1]
    rows[0, 1, 0] = -1  # not found
    rows[1, 1, 1] += 200  # found elsewhere
    assert task.qualities(Told(rows), data).tolist() == [0.5, 0.5]
    assert task.evaluate(Told(rows), data) == pytest.approx(99.5 / 2)
