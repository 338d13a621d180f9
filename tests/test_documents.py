"""Every example in the README and the docs runs, and the README's numbers are the stored ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import infobatch

ROOT = Path(__file__).parent.parent


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


def test_readme(tmp_path, capsys):
    blocks = examples("README.md")
    assert len(blocks) == 4
    namespace = surroundings(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert re.match(r"Saved \d+\.\d% of 1,200 sample passes", capsys.readouterr().out)
    assert namespace["pruner"].savings.made == 400


def test_policies_page(tmp_path):
    namespace = surroundings(tmp_path)
    for block in examples("docs/policies.md"):
        exec(compile(block, "policies.md", "exec"), namespace)
        train_data = namespace["train_data"]
        loader = DataLoader(train_data, 32, sampler=train_data.sampler)
        for _ in range(2):
            for x, y in loader:
                train_data.update(namespace["criterion"](namespace["model"](x), y))
        assert train_data.plan.weights.sum().item() == pytest.approx(400)
        assert train_data.savings.saved > 50


@pytest.mark.parametrize("number", range(5))
def test_usage_page(number, tmp_path):
    namespace = surroundings(tmp_path)
    train_data = infobatch.InfoBatch(namespace["data"], 3, delta=1.0)
    loader = DataLoader(train_data, 64, sampler=train_data.sampler)
    for x, y in loader:
        train_data.update(namespace["criterion"](namespace["model"](x), y))
    namespace.update(train_data=train_data, loader=loader)
    block = examples("docs/usage.md")[number]
    if "closure" in block:
        namespace["optimizer"] = torch.optim.LBFGS(namespace["model"].parameters(), max_iter=2)
    exec(compile(block, "usage.md", "exec"), namespace)
    if "in loader" in block:
        assert train_data.savings.made == 400 + len(train_data.plan)
    assert len(examples("docs/usage.md")) == 5


def test_accelerate_page(tmp_path, capsys):
    (block,) = examples("docs/accelerate.md")
    namespace = surroundings(tmp_path)
    exec(compile(block, "accelerate.md", "exec"), namespace)
    assert re.match(r"Saved \d+\.\d% of 1,200 sample passes", capsys.readouterr().out)
    assert namespace["schedule"].last_epoch == 3 * 7


@pytest.mark.parametrize(
    ("page", "script"),
    [("README.md", "demo_summary.py"), ("docs/performance.md", "overhead_summary.py")],
)
def test_tables_are_what_was_measured(page, script):
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("|")
    assert run.stdout in (ROOT / page).read_text()


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
