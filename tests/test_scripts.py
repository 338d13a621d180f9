"""The changes of docs/scripts.md, made in scripts of the same shape, which then train and resume."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import infobatch
from document_examples import ROOT, examples
from infobatch import InfoBatch

SCRIPTS = Path(__file__).parent / "support" / "scripts"
SAVED = re.compile(r"Saved (\d+\.\d)% of ([\d,]+) sample passes")


def changed(name, diff, folder):
    """The script with the diff applied: each hunk's old lines are replaced by its new ones."""
    text = (SCRIPTS / name).read_text()
    for hunk in re.split(r"^@@.*@@\n", diff, flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
        new = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, f"{name} has {text.count(old)} times:\n{old}"
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


def diffs():
    return re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "scripts.md").read_text(), re.DOTALL)


def run(path, *options, processes=1):
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*command, path, *map(str, options)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def with_plain_losses(script, mean):
    """Let the script also print the mean of each batch's losses, as the model has them."""
    text = script.read_text()
    assert text.count("loss.backward()") == 1
    prints = f"print('batch', len(target), {mean}.item()); loss.backward()"
    script.write_text(text.replace("loss.backward()", prints))
    return script


def plain_losses(output):
    return np.array(re.findall(r"^batch (\d+) (\S+)", output, re.MULTILINE), float).T


@pytest.mark.parametrize("options", [[], pytest.param(["--workers"], marks=pytest.mark.slow)])
def test_mnist(options, tmp_path):
    plain = run(SCRIPTS / "mnist.py")
    script = changed("mnist.py", diffs()[0], tmp_path)
    output = run(with_plain_losses(script, "F.nll_loss(output, target)"), *options)
    logged = [float(loss) for loss in re.findall(r"Loss: (\S+)", output)]
    assert logged == pytest.approx(plain_losses(output)[1], abs=1e-5), "without the weights"
    steps = re.findall(r"epoch \d: (\d+) of 20 steps", output)
    assert [int(count) == 20 for count in steps] == [True, False, False, False, False]
    saved, passes = SAVED.search(output).groups()
    assert float(saved) > 10
    assert passes == "1,600"
    accuracies = [float(re.findall(r"accuracy (.*)", text)[-1]) for text in (plain, output)]
    assert min(accuracies) > 0.9


def epoch_sizes(output):
    """The samples of each epoch, from what lies before its average loss."""
    epochs = re.split(r"^Loss .*$", output, flags=re.MULTILINE)[:-1]
    return [plain_losses(epoch)[0].sum() for epoch in epochs]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_imagenet(processes, tmp_path):
    script = changed("imagenet.py", diffs()[1], tmp_path)
    with_plain_losses(script, "criterion(output, target)")
    folders = [tmp_path / "whole", tmp_path / "resumed"]
    for folder in folders:
        folder.mkdir()
    options = ["--batch-size", 16 // processes]
    whole = run(script, *options, "--out", folders[0], processes=processes)
    options += ["--resume", folders[0] / "checkpoint-2.pt"]
    resumed = run(script, *options, "--out", folders[1], processes=processes)
    if processes == 1:
        averages = [float(loss) for loss in re.findall(r"^Loss (\S+)", whole, re.MULTILINE)]
        sizes, means = plain_losses(whole)
        assert np.dot(averages, epoch_sizes(whole)) == pytest.approx(np.dot(sizes, means), rel=1e-4)
    assert len(SAVED.findall(whole)) == processes  # the script prints on every process
    assert set(SAVED.findall(whole)) == set(SAVED.findall(resumed))
    assert float(SAVED.search(whole)[1]) > 10
    last = [torch.load(folder / "checkpoint-4.pt") for folder in folders]
    for name, value in last[0]["state_dict"].items():
        assert torch.equal(value, last[1]["state_dict"][name])
    scores = []
    for checkpoint in last:
        train_data = InfoBatch(list(range(320)), 4)
        train_data.load_state_dict(checkpoint["train_data"])
        scores.append(train_data.scores)
    assert torch.equal(*scores)


class Bigrams(nn.Module):
    """A language model of nanoGPT's interface: targets shifted already, -1 is ignored."""

    def __init__(self, vocabulary):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, idx, targets):
        logits = self.table(idx)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss


def test_nanogpt(capsys):
    rng = np.random.default_rng(0)
    easy = np.tile(np.arange(8), 130)[:1025]
    tokens = np.concatenate([easy, rng.integers(0, 8, 1024)]).astype(np.uint16)
    model, asked = Bigrams(8), []
    epochs, steps = 4, 2048 // 16 // 8

    def get_lr(iteration):
        asked.append(iteration)
        return 0.5 * (1 + math.cos(math.pi * iteration / (epochs * steps)))

    namespace = {
        "tokens": tokens,
        "block_size": 16,
        "batch_size": 8,
        "num_epochs": epochs,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1.0),
        "get_lr": get_lr,
    }
    (block,) = examples("docs/scripts.md")
    exec(compile(block, "scripts.md", "exec"), namespace)
    assert namespace["steps_per_epoch"] == steps
    train_data, loader = namespace["train_data"], namespace["loader"]
    x, y = train_data[3]
    assert x[1:].tolist() == y[:-1].tolist()
    logits, loss = model(x[None], y[None])
    scored = infobatch.scoring.causal_lm(logits, y[None], shift=False, ignore_index=-1)
    torch.testing.assert_close(scored.losses.mean(), loss)
    torch.testing.assert_close(scored.scores, loss.detach()[None])
    # A full epoch of virtual steps in each epoch, and fewer real ones from the second on.
    assert asked == sorted(asked)
    assert asked[:steps] == list(range(steps))
    assert {epoch * steps for epoch in range(epochs)} <= set(asked)
    assert epochs * steps > asked[-1] >= epochs * steps - 3
    assert len(asked) < epochs * steps
    assert len(loader.dataset) == 128
    assert SAVED.search(capsys.readouterr().out)
