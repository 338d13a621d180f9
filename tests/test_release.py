"""What is published: the index page, the citation, and the wheel by itself in a fresh environment."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
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
RECIPES = "alpaca, camvid, cifar10, covertype, diffusion, fashion, mae"
IMPORTED = {
    "accelerate": "import accelerate, infobatch.loaders.accelerate",
    "coresets": "import pyarrow.parquet, infobatch.coresets",
    "docs": "import latex2mathml, material, mkdocs, mkdocstrings_handlers.python",
    "lab": "import infobatch.lab.cli, infobatch.lab.commands, infobatch.lab.report.page",
    "lightning": "import infobatch.integrations.lightning",
    "ray": "import ray.train.torch, infobatch",
    "recipes": f"from infobatch.lab.recipes import {RECIPES}, optimizers; import datasets, pytorch_optimizer",
    # torchvision's build may not match torch's, see torchvision_operators
    "timm": f"import sys; sys.path.append({str(ROOT / 'tests/support')!r}); "
    "import torchvision_operators, infobatch.integrations.timm",
    "transformers": "import infobatch.integrations.transformers",
    "ultralytics": f"import sys; sys.path.append({str(ROOT / 'tests/support')!r}); "
    "import torchvision_operators, infobatch.integrations.ultralytics",
    "trl": "import infobatch.integrations.trl, peft",
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
    assert "](https://example.org/a/infobatch/raw/v1.2/docs/images/saving.png)" in text


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


def install(folder, *requirements):
    """Install into a virtual environment; returns its Python."""
    python = folder / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    done = subprocess.run(
        [*command, *requirements], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return python


@pytest.fixture(scope="module")
def with_torch():
    """A fresh virtual environment with torch alone, which takes minutes to make."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        install(Path(folder), "torch==2.13.0")
        yield Path(folder)


@pytest.fixture
def environment(with_torch):
    """A copy of it, by hard links, for what a test installs; deleted afterwards."""
    with tempfile.TemporaryDirectory(dir=with_torch.parent) as folder:
        copy = Path(folder) / "venv"
        shutil.copytree(with_torch, copy, symlinks=True, copy_function=os.link)
        yield copy


def run(python, code, folder):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, cwd=folder, env=variables
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_alone_runs_the_three_lines(wheel, environment, tmp_path):
    python = install(environment, str(wheel))
    assert "sample passes" in run(python, THREE_LINES, tmp_path)
    listing = "from importlib.metadata import *; print(*packages_distributions())"
    packages = run(python, listing, tmp_path)
    assert "numpy" in packages.split()
    assert "matplotlib" not in packages.split()


def test_every_extra_is_tested():
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    extras = re.findall(r"(?m)^(\w+) = \[", section.partition("[project.scripts]")[0])
    assert set(extras) - {"dev"} == IMPORTED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("extra", IMPORTED)
def test_every_extra_brings_what_its_module_imports(extra, wheel, environment, tmp_path):
    run(install(environment, f"{wheel}[{extra}]"), IMPORTED[extra], tmp_path)
