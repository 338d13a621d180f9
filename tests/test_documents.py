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


def scoring_surroundings(tmp_path):
    """What the examples of docs/scoring.md take as given: outputs of models for each task."""
    namespace = surroundings(tmp_path)
    train_data = infobatch.InfoBatch(namespace["data"], 3, delta=1.0)
    targets = torch.randint(2, (4,))
    classify = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))

    class Detector(nn.Module):
        def forward(self, images, targets):
            error = classify(torch.stack(images)).square().mean() - targets[0]
            return {"loss_classifier": error, "loss_box_reg": error * 2}

    return {
        **namespace,
        "torch": torch,
        "train_data": train_data,
        "loader": DataLoader(train_data, 64, sampler=train_data.sampler),
        "class_weights": torch.tensor([1.0, 2.0]),
        "logits": torch.randn(4, 2, requires_grad=True),
        "targets": targets,
        "probabilities": torch.rand(4, 2).softmax(1),
        "multi_hot": torch.rand(4, 2).round(),
        "images": torch.randn(4, 3, 2, 2),
        "classify": classify,
        "pixel_logits": torch.randn(4, 2, 3, 3, requires_grad=True),
        "auxiliary_logits": torch.randn(4, 2, 3, 3, requires_grad=True),
        "masks": torch.randint(2, (4, 3, 3)),
        "predictions": torch.randn(4, 6, 5, requires_grad=True),
        "patches": torch.randn(4, 6, 5),
        "mask": torch.rand(4, 6).round(),
        "alphas_cumprod": torch.linspace(0.99, 0.01, 1000),
        "timesteps": torch.randint(1000, (4,)),
        "clean": torch.randn(4, 3),
        "noise": torch.randn(4, 3),
        "prediction": torch.randn(4, 3, requires_grad=True),
        "token_logits": torch.randn(2, 5, 7, requires_grad=True),
        "labels": torch.randint(7, (2, 5)),
        "num_items_in_batch": torch.tensor(20),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]),
        "detector": Detector(),
        "boxes": torch.rand(4),
        "box_by_image": torch.rand(4, requires_grad=True),
        "cls_by_image": torch.rand(4, requires_grad=True),
        "dfl_by_image": torch.rand(4, requires_grad=True),
        "target_scores": torch.rand(4, 6, 2),
        "image_embeddings": torch.randn(4, 5, requires_grad=True),
        "text_embeddings": torch.randn(4, 5, requires_grad=True),
        "logit_scale": torch.tensor(2.0, requires_grad=True),
        "values": torch.randn(4, 2, requires_grad=True),
        "measured": torch.randn(4, 2),
        "spread": torch.tensor([1.0, 10.0]),
        "batch_loss": torch.tensor(1.0, requires_grad=True),
        "index": torch.arange(4),
    }


def test_scoring_page(tmp_path):
    """The blocks run in order, and every function of infobatch.scoring is shown in one of them."""
    namespace = scoring_surroundings(tmp_path)
    blocks = examples("docs/scoring.md")
    for block in blocks:
        exec(compile(block, "scoring.md", "exec"), namespace)
        if "result =" in block:
            assert namespace["result"].losses.requires_grad
    shown = set(re.findall(r"scoring\.(\w+)\(", "".join(blocks)))
    assert shown == set(infobatch.scoring.__all__) - {"PerSample"}
    assert namespace["train_data"].savings.made == 400


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
