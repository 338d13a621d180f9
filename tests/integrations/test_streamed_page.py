"""The examples of docs/streamed.md on WebDataset and Hugging Face run; litdata's are in test_litdata.py."""

import gc

import datasets
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import infobatch
import keyed_archives
from document_examples import examples

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # WebDataset's


@pytest.fixture(autouse=True)
def _collected():
    yield
    gc.collect()


def test_page(tmp_path, capsys):
    web, named, hugging_face, litdata, ranks, checkpoints = examples("docs/streamed.md")
    assert "litdata" in litdata
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2))
    labels = [number % 2 for number in range(120)]
    rows = {"id": list(range(120)), "x": [[float(y), 1.0] for y in labels], "y": labels}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "rows.parquet")
    names = {
        "infobatch": infobatch,
        "torch": torch,
        "DataLoader": DataLoader,
        "num_epochs": 4,
        "urls": keyed_archives.write_archives(tmp_path),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "linear": nn.Linear(2, 2),
        "files": [str(tmp_path / "rows.parquet")],
        "checkpoint": tmp_path / "checkpoint.pt",
        "dataset_size": 120,
        "world_size": 1,
    }

    def run(block):
        exec(compile(block, "streamed.md", "exec"), names)
        return names["pruner"]

    pruner = run(web)
    assert capsys.readouterr().out == f"{pruner.savings}\n"
    assert len(pruner.savings.epochs) == 4
    assert 0 < pruner.savings.saved < 360
    pruner = run(named)
    assert {item[0].rpartition("/")[2] for item in names["data"]} == {f"{n:03d}" for n in range(20)}
    assert run(hugging_face).epoch_length < 120
    assert 120 < names["pruner"].savings.made < 480
    pruner = run(ranks)
    assert pruner.savings.made == sum(
        16 * int(0.9 * length / 16)
        for length in [120, *(p.planned for p in pruner.savings.epochs[1:])]
    )
    assert run(checkpoints).epoch == 3
