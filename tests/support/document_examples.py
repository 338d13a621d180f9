"""The Python blocks of a page, and what they take as given."""

import re
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

import infobatch

ROOT = Path(__file__).parents[2]


def examples(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def surroundings(tmp_path):
    """What the examples take as given: data, a model, an optimizer."""
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = (x.sum(1) > 0).long()
    data = TensorDataset(x, y)
    model = nn.Linear(5, 2)
    return {
        "data": data,
        "train_data": data,
        "targets": y,
        "num_epochs": 3,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "my_collate": default_collate,
        "checkpoint": tmp_path / "checkpoint.pt",
        "infobatch": infobatch,
    }
