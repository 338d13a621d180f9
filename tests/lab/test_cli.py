"""The command line: what it lists, which mistakes it names, how fast its help is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import infobatch as library
from document_examples import examples
from infobatch.lab.cli import app
from infobatch.policies import POLICIES

ROOT = Path(__file__).parents[2]
MY_TASK = ROOT / "examples" / "my_task.py"


def infobatch(*arguments, check=True):
    """Run the command line in this process; the runs of a comparison are processes of their own."""
    run = CliRunner(env={"OMP_NUM_THREADS": "1"}).invoke(app, [str(part) for part in arguments])
    assert not check or run.exit_code == 0, run.stderr
    return run


def test_the_task_of_the_lab_page(tmp_path):
    (task,) = examples("docs/lab.md")
    assert len(task.splitlines()) <= 60
    (tmp_path / "my_task.py").write_text(task)
    arguments = ("--smoke", "--lengths", 1, "--arms", "full,infobatch", "--seeds", 1)
    output = infobatch("compare", tmp_path / "my_task.py", *arguments, "--out", tmp_path / "out")
    assert output.stdout.count("Not decided: there is one seed.") == 1


def test_a_failing_task_is_told_without_a_traceback(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(MY_TASK.read_text().replace('reduction="none"', 'reduction="mean"'))
    arguments = ("--smoke", "--lengths", 1, "--arms", "full", "--seeds", 1)
    arguments += ("--out", tmp_path / "out")
    run = infobatch("compare", broken, *arguments, check=False)
    assert run.exit_code == 1
    assert "update() got a scalar, expected one loss" in run.stderr
    assert "log.txt" in run.stderr
    assert "Traceback" not in run.stderr
    broken.write_text(MY_TASK.read_text().replace("def model()", "def modle()"))
    run = infobatch("compare", broken, *arguments, check=False)
    assert run.exit_code == 2
    assert "broken does not define model()" in run.stderr
    broken.write_text("raise ValueError('expected data[index], got [/red]')")
    run = infobatch("compare", broken, *arguments, check=False)
    assert "ValueError: expected data[index], got [/red]" in run.stderr, "brackets are text"
    broken.write_text("import nonsense_that_is_not_there")
    run = infobatch("compare", broken, *arguments, check=False)
    assert "fails on import: ModuleNotFoundError" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "nonsense"), "There is no recipe 'nonsense'"),
        (("compare", "nothing.py"), "There is no file nothing.py"),
        (("compare", "fashion", "--arms", "full,fill"), "There is no arm 'fill'"),
        (("compare", "fashion", "--arms", "full,random"), "Add infobatch"),
        (
            ("compare", "fashion", "--arms", ""),
            "--arms got '', expected each arm once and at least one.",
        ),
        (
            ("compare", "fashion", "--arms", "infobatch"),
            "--arms got infobatch without full, training on all data, which every arm is compared "
            "with. Add it: --arms full,infobatch.",
        ),
        (
            ("compare", "fashion", "--learning-rates", "a,b"),
            "--learning-rates got 'a,b', expected different positive numbers: 0.03,0.1,0.3.",
        ),
        (
            ("compare", "fashion", "--lengths", "0.5"),
            "--lengths got '0.5', expected different shares of the epochs, 1 among them",
        ),
        (("compare", "fashion", "--lengths", "1,1"), "--lengths got '1,1', expected different"),
        (("compare", "fashion", "--lengths", "0,1"), "--lengths got '0,1', expected different"),
        (("compare", "fashion", "--set", "optimizer"), "expected name=value"),
        (("compare", "fashion", "--set", "nonsense=1"), "has no option 'nonsense'"),
        (
            ("compare", "fashion", "--log", "paper"),
            "--log got 'paper', expected one of tensorboard, wandb.",
        ),
        (
            ("compare", "fashion", "--data", "nowhere"),
            "--data got nowhere, which is not a folder. Expected the one with the data sets.",
        ),
        (("report", "nowhere"), "There is no nowhere"),
    ],
)
def test_errors_in_words_before_anything_starts(arguments, message, tmp_path):
    out = ("--out", tmp_path / "out") if arguments[0] == "compare" else ()
    run = infobatch(*arguments, *out, check=False)
    assert run.exit_code == 2
    assert message in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_raises_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    run = infobatch("compare", "fashion", "--out", out, check=False)
    assert run.exit_code == 2
    message = f"--out got {out}, which cannot be written (Not a directory). Choose another folder."
    assert message in " ".join(run.stderr.split())


def test_lists_and_help(tmp_path):
    output = infobatch("recipes", "--data", tmp_path).stdout
    for name in (
        "fashion",
        "cifar10",
        "covertype",
        "camvid",
        "bccd",
        "mae",
        "diffusion",
        "alpaca",
        "gsm8k",
    ):
        assert name in output
    assert "missing data: covtype.npz or covtype.data.gz" in output
    output = infobatch("policies").stdout
    for name in ("mean", "quantile", "random", "none"):
        assert name in output.splitlines()
    listed = infobatch("--help").stdout.partition("Commands:")[2]
    assert "policies" in listed
    assert "..." not in listed, "cut at 80 columns"
    for command in ("demo", "compare", "report", "recipes", "policies"):
        assert "Usage" in infobatch(command, "--help").stdout
    output = " ".join(infobatch("compare", "--help").stdout.split())
    assert "[default: compare-TASK, or -smoke]" in output, "a bracket is no markup"
    assert "[env: INFOBATCH_DATA]" in output
    assert "[default: 0.4,0.6,0.8,1]" in output
    assert infobatch("--version").stdout == f"infobatch {library.__version__}\n"


def loaded_by(*arguments):
    """The packages that a command loads."""
    code = (
        "import sys; from infobatch.lab import main\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.rpartition("LOADED ")[2].split())


@pytest.mark.parametrize(
    "arguments", [("--help",), ("compare", "--help"), ("recipes",), ("policies",), ("--version",)]
)
def test_help_and_lists_wait_for_no_heavy_package(arguments):
    heavy = {"torch", "scipy", "matplotlib", "numpy", "jinja2", "PIL"}
    assert not loaded_by(*arguments) & heavy


def test_policies_are_listed_as_they_are_registered():
    output = infobatch("policies").stdout
    assert max(map(len, output.splitlines())) <= 80
    words = " ".join(output.split())
    for name, policy in POLICIES.items():
        summary = policy.__doc__.strip().splitlines()[0]
        assert POLICIES.entries[name].summary == summary
        assert f"{name} {summary.replace('``', '')}" in words
    names = [line for line in output.splitlines() if not line.startswith(" ")]
    assert names == sorted(POLICIES)


def test_curves_for_tensorboard_and_wandb(tmp_path):
    base = [sys.executable, "-m", "infobatch.lab.run", "fashion", "--smoke"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    for kind in ("tensorboard", "wandb"):
        out = tmp_path / kind
        command = [*base, "--log", kind, "--out", out]
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=120)
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    events = EventAccumulator(str(tmp_path / "tensorboard" / "tensorboard"))
    events.Reload()
    logged = {"accuracy"}
    logged |= {f"infobatch/{name}" for name in ("kept_fraction", "samples_saved", "added_noise")}
    assert logged <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("accuracy")] == [2]
    assert list((tmp_path / "wandb").rglob("*.wandb")), "the offline run is on disk"
