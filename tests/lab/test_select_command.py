"""``infobatch select``: from a recipe, from a user's file, from exported scores."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import infobatch as library
from infobatch import coresets
from infobatch.lab.cli import app

MY_TASK = Path(__file__).parents[2] / "examples" / "my_task.py"


def select(*arguments, check=True):
    run = CliRunner(env={"OMP_NUM_THREADS": "1"}).invoke(
        app, ["select", *(str(part) for part in arguments)]
    )
    assert not check or run.exit_code == 0, run.stderr
    return run


def test_a_recipe(tmp_path):
    out = tmp_path / "chosen.csv"
    run = select("k_center", "fashion", "--fraction", 0.3, "--smoke", "--out", out)
    assert re.search(
        r"77 of 256 samples, chosen by k_center\. It took .* and 1,024 sample passes of a proxy, 512 of",
        run.stdout,
    )
    indices, weights = coresets.load_indices(out)
    assert len(set(indices.tolist())) == 77
    assert (weights == 1).all()
    page = out.with_suffix(".html").read_text()
    assert page.count("<img src=") == 24
    assert "A random draw of those that were left out" in page
    assert "ankle boot" in page
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="http', page)


def test_several_methods_share_one_proxy_and_one_choice_is_made_once(tmp_path):
    for method in ("margin", "craig", "deepfool"):
        select(method, "fashion", "--smoke", "--out", tmp_path / f"{method}.npz")
    folder = tmp_path / "selections-fashion-smoke"
    (proxy,) = folder.glob("proxy*.pt")
    page = (tmp_path / "margin.html").read_text()
    assert "The least important" in page
    proxy.unlink()
    before, _ = coresets.load_indices(tmp_path / "margin.npz")
    select("margin", "fashion", "--smoke", "--out", tmp_path / "margin.npz")
    assert coresets.load_indices(tmp_path / "margin.npz")[0].tolist() == before.tolist()
    assert not proxy.exists()
    _, weights = coresets.load_indices(tmp_path / "craig.npz")
    assert weights.sum() == 256
    # DeepFool's own passes, and the look that shows it the inputs, come on top of the proxy's 1,024.
    cost = re.search(r"([\d,]+) sample passes", (tmp_path / "deepfool.html").read_text())
    assert int(cost[1].replace(",", "")) >= 1024 + 256 + 2 * 256 * 11


def test_a_proxy_of_other_settings_is_not_used(tmp_path):
    """Nor in the way: it would make others of the samples, or not fit at all."""
    select("margin", "fashion", "--smoke", "--out", tmp_path / "margin.npz")
    adamw = ("--set", "optimizer=adamw")
    select("entropy", "fashion", "--smoke", *adamw, "--out", tmp_path / "entropy.npz")
    early = ("--proxy-epochs", 2)  # as many as margin's, with early scores after the second
    select("el2n", "fashion", "--smoke", *early, "--out", tmp_path / "el2n.npz")
    assert len(list((tmp_path / "selections-fashion-smoke").glob("proxy-2-1-0-*.pt"))) == 3
    select("entropy", "fashion", "--smoke", *adamw, "--out", tmp_path / "alone" / "entropy.npz")
    chosen, _ = coresets.load_indices(tmp_path / "entropy.npz")
    alone, _ = coresets.load_indices(tmp_path / "alone" / "entropy.npz")
    assert chosen.tolist() == alone.tolist()


def test_a_file_of_ones_own_with_options(tmp_path):
    out = tmp_path / "chosen.parquet"
    arguments = (
        "--smoke",
        "--networks",
        2,
        "--proxy-epochs",
        1,
        "--option",
        "strata=5",
        "--no-balanced",
    )
    select("ccs", MY_TASK, "--fraction", 0.1, *arguments, "--out", out)
    assert len(coresets.load_indices(out)[0]) == 26
    (proxy,) = (tmp_path / "selections-my_task-smoke").glob("proxy*.pt")
    assert proxy.name.startswith("proxy-1-2-0-")


@pytest.fixture
def scores(tmp_path):
    """The scores of a training on the images of my_task.py, whose losses are their numbers."""
    data = TensorDataset(torch.zeros(12_000, 1))
    train_data = library.InfoBatch(data, 2)
    order = torch.tensor(list(train_data.sampler))
    train_data.update(order.float().requires_grad_())
    path = tmp_path / "scores.npz"
    train_data.export_scores(path)
    return path


def test_exported_scores(scores, tmp_path):
    out = tmp_path / "hardest.npz"
    run = select("el2n", "--scores", scores, "--column", "score", "--fraction", 0.01, "--out", out)
    assert "120 of 12,000 samples" in run.stdout
    assert coresets.load_indices(out)[0].tolist() == list(range(11_999, 11_879, -1))
    page = out.with_suffix(".html").read_text()
    assert "No. 11999" in page
    assert "Class balance" not in page


def test_exported_scores_beside_a_small_task(tmp_path):
    np.savez(tmp_path / "scores.npz", index=np.arange(256), el2n=np.arange(256.0))
    out = tmp_path / "hardest.npz"
    select("el2n", "fashion", "--smoke", "--scores", tmp_path / "scores.npz", "--out", out)
    assert len(coresets.load_indices(out)[0]) == 77


def test_exported_scores_beside_a_task_are_balanced_and_shown(scores, tmp_path):
    out = tmp_path / "hardest.npz"
    select("el2n", MY_TASK, "--scores", scores, "--column", "score", "--out", out)
    indices, _ = coresets.load_indices(out)
    labels = library.lab.datasets.fashion.load()[1].numpy()
    counts, sizes = np.bincount(labels[indices]), np.bincount(labels)
    assert np.abs(counts - 0.3 * sizes).max() < 1
    page = out.with_suffix(".html").read_text()
    assert page.count("<img src=") == 24
    assert "Class balance" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kcenter", "fashion"), "There is no method 'kcenter'. Expected one of random, herding"),
        (("k_center",), "needs something to choose from: a recipe's name"),
        (
            ("k_center", "fashion", "--fraction", "30"),
            "--fraction got 30, expected a share above 0",
        ),
        (
            ("k_center", "fashion", "--option", "beta=1"),
            "k_center has no option 'beta'. It has first.",
        ),
        (
            ("k_center", "fashion", "--out", "chosen.txt"),
            "expected a file name that ends in .npz, .csv",
        ),
        (("el2n", "--scores", "nowhere.csv"), "--scores got nowhere.csv, which is not a file"),
        (("k_center", "nonsense"), "There is no recipe 'nonsense'"),
    ],
)
def test_what_raises(arguments, words):
    run = select(*arguments, check=False)
    assert run.exit_code == 2
    assert words in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
