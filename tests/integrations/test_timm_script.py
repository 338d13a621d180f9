"""timm's own train.py with the diff of docs/timm.md: it trains, resumes and runs on two processes.

The script is in timm's repository alone, not in its distributions. Name a copy in TIMM_TRAIN_SCRIPT
where GitHub cannot be reached.
"""

import csv
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import infobatch
from infobatch.integrations.timm import load_pruning

ROOT = Path(__file__).parents[2]
SOURCE = "https://raw.githubusercontent.com/huggingface/pytorch-image-models/v{}/train.py"
EPOCHS, RATE = 4, 0.05
pytestmark = pytest.mark.slow


def timm_s_script():
    if path := os.environ.get("TIMM_TRAIN_SCRIPT"):
        return Path(path).read_text()
    try:
        with urllib.request.urlopen(SOURCE.format(timm.__version__), timeout=30) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"timm's train.py cannot be had ({error}): name a copy in TIMM_TRAIN_SCRIPT")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "train.py").write_text(timm_s_script())
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "timm.md").read_text(), re.DOTALL)
    (folder / "infobatch.diff").write_text(diff)
    subprocess.run(["git", "apply", "--verbose", "infobatch.diff"], cwd=folder, check=True)
    patched = (folder / "train.py").read_text()
    # What timm does not do itself: DistributedDataParallel takes no device for models on the CPU.
    assert "device_ids=[device]" in patched
    patched = patched.replace("device_ids=[device]", "device_ids=None")
    (folder / "train.py").write_text(f"import torchvision_operators\n{patched}")
    return folder / "train.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noisy pictures of four classes, in folders."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("images")
    for split, count in (("train", 36), ("validation", 8)):
        for label in range(4):
            (folder / split / str(label)).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (32, 32, 3))
                pixels[label // 2 * 16 :][:16, label % 2 * 16 :][:, :16] += 130
                image = Image.fromarray(pixels.astype(np.uint8))
                image.save(folder / split / str(label) / f"{number}.png")
    return folder


def train(script, images, out, *options, processes=1):
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    settings = f"--model resnet10t --num-classes 4 --img-size 32 --epochs {EPOCHS} --lr {RATE}"
    settings += f" --device cpu --workers 1 --batch-size {16 // processes} --min-lr 0"
    settings += " --warmup-epochs 0 --sched-on-updates"
    path = [str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    command += [script, "--data-dir", images, "--output", out.parent, "--experiment", out.name]
    run = subprocess.run(
        [*command, *settings.split(), *options],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (saved,) = set(re.findall(r"Saved .* epochs\).*", run.stdout + run.stderr))
    return saved


def rates(folder):
    """Epoch by epoch, what the script's own summary says."""
    with (folder / "summary.csv").open() as rows:
        return {int(row["epoch"]): float(row["lr"]) for row in csv.DictReader(rows)}


def last(folder):
    return torch.load(folder / "last.pth.tar", weights_only=False)


def pruning(folder):
    """The state of the training set in the last checkpoint."""
    train_data = infobatch.InfoBatch(list(range(4 * 36)), EPOCHS)
    load_pruning(train_data, folder / "last.pth.tar")
    return train_data


@pytest.mark.parametrize("processes", [1, 2])
def test_it_trains_and_resumes(script, images, processes, tmp_path):
    """Without augmentation nothing is random but the order, which is ours: a resume gives equal bits."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    saved = train(script, images, whole, "--no-aug", processes=processes)
    checkpoint = str(whole / "checkpoint-1.pth.tar")
    again = train(script, images, resumed, "--no-aug", "--resume", checkpoint, processes=processes)
    assert again == saved
    assert float(re.match(r"Saved (\d+\.\d)%", saved)[1]) > 10
    first, second = last(whole), last(resumed)
    assert all(
        torch.equal(value, second["state_dict"][name])
        for name, value in first["state_dict"].items()
    )
    assert torch.equal(pruning(whole).scores, pruning(resumed).scores)
    # The schedule is that of full data: half a cosine over all epochs, however short they are.
    expected = {
        epoch: RATE * (1 + np.cos(np.pi * (epoch + 1) / EPOCHS)) / 2 for epoch in range(EPOCHS)
    }
    assert rates(whole) == pytest.approx(expected, abs=1e-9)
    assert rates(resumed) == pytest.approx({2: expected[2], 3: expected[3]}, abs=1e-9)


def test_it_trains_with_mixup_augmentation_accumulation_and_averaged_weights(
    script, images, tmp_path
):
    options = "--mixup 0.2 --cutmix 1.0 --reprob 0.2 --grad-accum-steps 2 --model-ema"
    train(script, images, tmp_path / "run", *options.split(), "--recovery-interval", "2")
    recovery = min((tmp_path / "run").glob("recovery-*.pth.tar"))
    assert recovery.name.startswith("recovery-2-")  # in the middle of the third epoch
    train(script, images, tmp_path / "again", *options.split(), "--resume", str(recovery))
    assert rates(tmp_path / "again") == pytest.approx({3: 0.0}, abs=1e-9)
    for run in ("run", "again"):
        assert pruning(tmp_path / run).epoch == EPOCHS
