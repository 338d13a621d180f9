"""The examples run as their first lines say, on small data made here where theirs is not shipped."""

import gzip
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
import torch

import infobatch

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_benchmark_on_cifar10(tmp_path):
    """It reads the binary version as the authors publish it."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"]:
        records = rng.integers(0, 256, (200, 1 + 3 * 32 * 32), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / f"{name}.bin")
    out = tmp_path / "results.json"
    benchmark = EXAMPLES.parent / "benchmarks" / "cifar10.py"
    command = [sys.executable, benchmark, "--data", tmp_path, "--samples", "200"]
    subprocess.run([*command, "--epochs", "3", "--out", out], check=True, timeout=120)
    results = json.loads(out.read_text())
    full, pruned = results["passes"]
    assert full == 600
    assert 300 < pruned < 600
    assert results["share_of_passes_saved"] == 1 - pruned / full


def test_gpu_check_without_a_gpu(capsys):
    """What it checks on a CPU in a moment; the rest takes a compiler or processes."""
    script = runpy.run_path(EXAMPLES / "gpu_check.py")
    quick = {name: check for name, check in script["CHECKS"].items() if "process" not in name}
    quick = {name: check for name, check in quick.items() if not name.startswith("a compiled")}
    results = [script["run"](*pair, torch.device("cpu")) for pair in quick.items()]
    found = [result["status"] for result in results]
    assert sorted(set(found)) == ["not checked", "ok"], capsys.readouterr().out
    assert found.count("not checked") == 2, "those with CUDA graphs"


def test_gpu_check_notices_what_is_wrong(monkeypatch):
    script = runpy.run_path(EXAMPLES / "gpu_check.py")
    update = infobatch.Pruner.update
    monkeypatch.setattr(
        infobatch.Pruner, "update", lambda *args, **kwargs: update(*args, **kwargs) * 1.1
    )
    check = script["CHECKS"]["the pure step"]
    result = script["run"]("the pure step", check, torch.device("cpu"))
    assert result["status"] == "FAILED"


@pytest.mark.slow
def test_gpu_check(tmp_path):
    command = [sys.executable, EXAMPLES / "gpu_check.py", "--out", tmp_path / "found.json"]
    run = subprocess.run(command, check=True, timeout=600, capture_output=True, text=True)
    assert "12 checks, 0 failed" in run.stdout
    assert "There is no accelerator here" in run.stdout
    checks = json.loads((tmp_path / "found.json").read_text())["checks"]
    assert [check["status"] for check in checks].count("not checked") == 4


@pytest.mark.slow
def test_notebook(tmp_path):
    """As Colab and Kaggle run it, cell by cell, but for the installation."""
    notebook = nbformat.read(EXAMPLES / "infobatch.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("%pip")]
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    printed = "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    assert "sample passes" in printed
    assert printed.count("test accuracy") == 2


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_accelerate(processes, tmp_path):
    """As in the example's first line, but for the processes and the size; then once more, to resume."""
    example = EXAMPLES / "accelerate_fashion.py"
    torchrun, *rest = example.read_text().splitlines()[0].removeprefix("# ").split()
    assert torchrun == "torchrun"
    rest[rest.index("--nproc-per-node") + 1] = str(processes)
    command = [sys.executable, "-m", "torch.distributed.run", *rest, "--epochs", "2"]
    command += ["--samples", "1000", "--checkpoints", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outputs = []
    for options in ([], ["--resume"]):
        run = subprocess.run(
            [*command, *options],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=EXAMPLES.parent,
            env=environment,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        outputs.append(run.stdout)
    first, resumed = outputs
    assert "epoch 1: test accuracy" in first
    saved = first.splitlines()[-1]
    assert saved.startswith("Saved")
    assert saved.endswith(f"on {processes} processes")
    assert resumed == saved + "\n"  # nothing was left to train


def test_torchdata_fashion():
    example = EXAMPLES / "torchdata_fashion.py"
    command = [sys.executable, example, "--epochs", "3", "--samples", "1000"]
    run = subprocess.run(command, check=True, timeout=240, capture_output=True, text=True)
    assert "of 3,000 sample passes" in run.stdout, "no sample twice, none lost over the stop"
    assert len(example.read_text().splitlines()) <= 60


@pytest.mark.slow
def test_ray_fashion(tmp_path):
    """Two workers train two epochs; a longer run of the same name continues from there."""
    pytest.importorskip("ray")
    example = EXAMPLES / "ray_fashion.py"
    command = [sys.executable, example, "--samples", "1000", "--storage", tmp_path]
    for epochs in ("2", "3"):
        run = subprocess.run(
            [*command, "--epochs", epochs], timeout=400, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr[-3000:]
    assert "of 3,000 sample passes" in run.stdout, "the first two epochs were not made again"
    assert "test accuracy" in run.stdout
    assert len(example.read_text().splitlines()) <= 60


def test_lightning_fashion(tmp_path):
    command = [sys.executable, EXAMPLES / "lightning_fashion.py", "--epochs", "3"]
    run = subprocess.run(
        [*command, "--samples", "1000"],
        check=True,
        timeout=240,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "of 3,000 sample passes" in run.stdout
    assert "test accuracy" in run.stdout


@pytest.mark.parametrize("name", ["transformers_text.py", "trl_lora.py"])
def test_text(name, tmp_path):
    (tmp_path / "gsm8k").mkdir()
    with gzip.open(tmp_path / "gsm8k" / "train.jsonl.gz", "wt", encoding="utf8") as lines:
        for number in range(60):
            answer = f"It is {number + 1}.\n#### {number + 1}" if number % 2 else "#### 0"
            row = {"question": f"What comes after {number}?", "answer": answer}
            lines.write(json.dumps(row) + "\n")
    command = [sys.executable, EXAMPLES / name, "--data", tmp_path, "--out", tmp_path / "out"]
    run = subprocess.run(
        command,
        check=True,
        timeout=240,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CI": "1"},  # no telemetry
    )
    saved = re.fullmatch(r"Saved (\d+\.\d)% of .* epochs\)", run.stdout.splitlines()[-1])
    assert float(saved[1]) > 5
    assert len(list(tmp_path.glob("out/checkpoint-*/infobatch.pt"))) == 3
    assert len((EXAMPLES / name).read_text().splitlines()) <= 60
