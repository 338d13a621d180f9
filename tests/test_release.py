"""What is published: the index page, the citation, and the wheel by itself in a fresh environment."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

import infobatch

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?!https?:|#)")

THREE_LINES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import infobatch

data = TensorDataset(torch.randn(200, 5), torch.randint(2, (200,)))
model = nn.Linear(5, 2)
train_data = infobatch.InfoBatch(data, 4)
loader = DataLoader(train_data, 32, sampler=train_data.sampler)
for epoch in range(4):
    for x, y in loader:
        train_data.update(nn.functional.cross_entropy(model(x), y, reduction="none")).backward()
print(train_data.savings)
"""
IMPORTED = {
    "lab": "infobatch.lab.report.page",
    "recipes": "infobatch.lab.recipes.diffusion",
    "coresets": "pyarrow.parquet, infobatch.coresets",
    "accelerate": "infobatch.integrations.accelerate",
    "lightning": "infobatch.integrations.lightning",
    "ray": "ray.train.torch, infobatch",
    "timm": "infobatch.integrations.timm",
    "transformers": "infobatch.integrations.transformers",
    "trl": "infobatch.integrations.trl",
}


@pytest.fixture(scope="module")
def index_page():
    """The functions of hatch_build.py, without hatchling, which only builds have."""
    source = (ROOT / "hatch_build.py").read_text()
    source = re.sub(r"^from hatchling.*$", "MetadataHookInterface = object", source, flags=re.M)
    names = {}
    exec(compile(source, "hatch_build.py", "exec"), names)
    return names


def test_no_link_of_the_index_page_is_relative(index_page):
    readme = (ROOT / "README.md").read_text()
    assert LINK.search(readme)
    text = index_page["description"](readme, None, "1.2")
    assert not LINK.search(text)
    assert "![" not in text
    assert "InfoBatchTrainer(…, infobatch=InfoBatchConfig())" in text
    text = index_page["description"](readme, "https://example.org/a/infobatch/", "1.2")
    assert not LINK.search(text)
    assert "](https://example.org/a/infobatch/blob/v1.2/docs/lab.md)" in text
    assert "](https://example.org/a/infobatch/raw/v1.2/docs/images/frontier.png)" in text


def test_addresses_are_not_invented(index_page):
    assert list(index_page["addresses"](None)) == ["Paper"]
    assert index_page["addresses"]("https://example.org/a/b")["Issues"].endswith("/a/b/issues")


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == infobatch.__version__
    paper = citation["preferred-citation"]
    bibtex = (ROOT / "docs/citing.md").read_text()
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in bibtex
    assert paper["url"] in bibtex
    assert infobatch.__version__ in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    archives = sorted(folder.iterdir())
    assert len(archives) == 2
    check = [sys.executable, "-m", "twine", "check", "--strict", *archives]
    subprocess.run(check, check=True, capture_output=True)
    return next(path for path in archives if path.suffix == ".whl")


def environment(folder, *requirements):
    """A fresh virtual environment; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, *requirements], check=True, capture_output=True)
    return python


def run(python, code, folder):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, cwd=folder, env=variables
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="module")
def alone(wheel, tmp_path_factory):
    """An environment with the wheel and what it asks for, nothing else."""
    return environment(tmp_path_factory.mktemp("alone") / "venv", "torch==2.13.0", str(wheel))


@pytest.mark.slow
def test_the_wheel_alone_runs_the_three_lines(alone, tmp_path):
    assert "sample passes" in run(alone, THREE_LINES, tmp_path)
    listed = [alone, "-m", "pip", "list", "--format", "freeze"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert "matplotlib" not in names


@pytest.mark.slow
@pytest.mark.parametrize("extra", IMPORTED)
def test_every_extra_brings_what_its_module_imports(extra, wheel, alone, tmp_path):
    """On top of the first environment: another torch for each would take minutes."""
    folder = tmp_path / "venv"
    python = environment(folder, "pip")
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (torchs,) = (alone.parent.parent / "lib").glob("python3*/site-packages")
    (packages / "torch.pth").write_text(f"{torchs}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, f"{wheel}[{extra}]"], check=True, capture_output=True)
    run(python, f"import {IMPORTED[extra]}", tmp_path)
