"""Tabular classification on Covertype: 581,012 rows, four fifths of them to train on.

40 epochs: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from infobatch import PerSample, scoring
from infobatch.lab.datasets.readers import Covertype
from infobatch.lab.recipes.evaluation import accuracy, batches

TRAIN_SHARE = 0.8


@dataclass
class Recipe:
    """An MLP with two hidden layers and AdamW.

    A step takes a few milliseconds, and stacking a thousand rows takes as long. So a sample is only
    a row number in the table, and ``collate`` reads all rows of a batch at once.

    Options:
        rows: how many randomly chosen rows to train on; 0 for all of them.
    """

    folder: Path | None = None
    smoke: bool = False
    num_rows: int = field(default=0, metadata={"option": "rows"})

    epochs = 40
    batch_size = 1024
    learning_rate = 4e-3
    evaluate_every = 10
    metric = "accuracy"
    unit = "points"
    counts_items = True
    margin = 0.3

    @property
    def class_names(self) -> tuple[str, ...]:
        """The kinds of forest."""
        return CLASSES

    def __post_init__(self) -> None:
        if self.num_rows < 0:
            raise ValueError(f"rows={self.num_rows}, expected a number of rows, or 0 for all.")
        self.source = Covertype(self.folder)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """464,809 training rows or as many as requested, 116,203 test rows, equal for all seeds."""
        features, classes = map(torch.from_numpy, self.source.table())
        count = len(classes)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        split = int(TRAIN_SHARE * count)
        train, test = order[:split], order[split:]
        if self.num_rows:
            train = train[: self.num_rows]
        spread, mean = torch.std_mean(features[train], dim=0)
        self.features = (features - mean) / spread.clamp_min(1e-6)  # a column may be constant
        self.classes = classes
        return RowNumbers(train), RowNumbers(test)

    def collate(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The features and classes of the rows."""
        numbers = torch.tensor(rows)
        return self.features[numbers], self.classes[numbers]

    def model(self) -> nn.Module:
        """54 features, 256 and 256 hidden units, 7 classes."""
        return nn.Sequential(
            nn.Linear(54, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 7)
        )

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """Cross-entropy."""
        features, classes = batch
        return scoring.cross_entropy(model(features), classes)

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """Accuracy in percent."""
        return accuracy(model, data, 8192, collate_fn=self.collate)

    def labels(self, data: Dataset[Any]) -> list[int]:
        """The class of each row."""
        parts = batches(data, 8192, collate_fn=self.collate)
        return [int(label) for _, classes in parts for label in classes]

    def show(self, data: Dataset[Any], index: int) -> str:
        """The row's class, and those of its ten measurements that differ from the average."""
        row = data[index]
        measured = zip(MEASUREMENTS, self.features[row].tolist(), strict=False)
        unlike = [f"{name} {value:+.1f}σ" for name, value in measured if abs(value) >= 1]
        return f"{CLASSES[int(self.classes[row])]}: {', '.join(unlike) or 'average'}"


class RowNumbers(Dataset[int]):
    """The numbers of the rows of one part of the table."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows.tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        number: int = self.rows[index]
        return number

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self.rows[index] for index in indices]


CLASSES = (
    "spruce/fir",
    "lodgepole pine",
    "ponderosa pine",
    "cottonwood/willow",
    "aspen",
    "douglas-fir",
    "krummholz",
)
MEASUREMENTS = (
    "elevation",
    "aspect",
    "slope",
    "distance to water",
    "height above water",
    "distance to roads",
    "shade at 9",
    "shade at noon",
    "shade at 15",
    "distance to fire points",
)
