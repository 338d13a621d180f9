"""The command line and its comparison, for real: child processes, kills, resumes, verdicts."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from infobatch.lab import live
from infobatch.lab.arms import Arm, leader_of, parse_arms
from infobatch.lab.cli import app
from infobatch.lab.comparison import Comparison
from infobatch.lab.jobs import Job
from infobatch.lab.live import LiveTable, answers, results_table
from infobatch.lab.results import run_folder
from infobatch.lab.task import TaskError, load_task

ROOT = Path(__file__).parent.parent
MY_TASK = ROOT / "examples" / "my_task.py"


def infobatch(*arguments, check=True):
    """Run the command line in this process; the runs of a comparison are processes of their own."""
    run = CliRunner(env={"OMP_NUM_THREADS": "1"}).invoke(app, [str(part) for part in arguments])
    assert not check or run.exit_code == 0, run.stderr
    return run


def start(out, *arguments):
    """Begin a comparison and do not wait for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "infobatch.lab.cli", "compare", *map(str, arguments), "--out", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(condition, what, seconds=120):
    """Wait until something holds; a bound on hanging, not an assertion on speed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never saw {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """All arms on the embedded data, two seeds, a few samples."""
    out = tmp_path_factory.mktemp("compare")
    run = infobatch("compare", "fashion", "--smoke", "--seeds", 2, "--jobs", 2, "--out", out)
    return out, run.stdout


def test_a_comparison_leaves_results_report_and_a_table(compared):
    out, printed = compared
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == 1
    assert results["task"] == "fashion"
    assert results["margin"] == 0.5
    arms = ["full", "short", "random", "infobatch", "quantile"]
    assert {(run["arm"], run["seed"]) for run in results["runs"]} == {
        (arm, seed) for arm in arms for seed in (0, 1)
    }
    for run in results["runs"]:
        assert run["metric"] == run["history"][-1]["metric"], "the last epoch's, not the best one's"
        costs = run["costs"]
        assert costs["samples_forwarded"] == costs["samples_backpropagated"] > 0
        assert costs["optimizer_steps"] > 0
        assert costs["peak_memory_mb"] > 50
        assert run["versions"]["torch"]
    assert {verdict["arm"] for verdict in results["verdicts"]} == set(arms) - {"full"}
    for verdict in results["verdicts"]:
        assert verdict["text"] in printed.replace("\n", " ")
        assert verdict["text"].startswith(("Lossless", "worse by", "not enough seeds to tell"))
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{verdict['arm']}: ")]
        assert verdict["explanation"] in line
        assert re.search(r"Difference to full: [+−][\d.]+ \(95% interval [+−][\d.]+ to ", line)
        for other in {"short", "random"} - {verdict["arm"]}:
            assert re.search(rf"to {other} [+−][\d.]+ \(95% interval [+−][\d.]+ to ", line)
    assert "A smoke run: it shows that everything works, and says nothing" in printed
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert not list(out.rglob("*.tmp*"))
    assert not list(out.rglob("checkpoint.pt")), "finished runs need none"


def names_in(value, of=""):
    """The names of a record's fields, with those of what is inside it: ``history[].epoch``."""
    if isinstance(value, dict) and of not in OPEN:
        for name, inner in value.items():
            yield from names_in(inner, f"{of}.{name}" if of else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield of
        yield from names_in(value[0], f"{of}[]")
    else:
        yield of


# Objects whose names are the task's, the arms' or the packages'.
OPEN = {"options", "settings.options", "chosen_rates", "versions", "extra_metrics"}


def test_the_schema_page_names_every_field(compared):
    out, _ = compared
    page = (ROOT / "docs" / "results-schema.md").read_text()
    whole, run, verdict, _ = re.split(r"^## .*$", page, flags=re.MULTILINE)

    def documented(section):
        cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        return {name for cell in cells for name in re.findall("`(.+?)`", cell)}

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    results = json.loads((out / "results.json").read_text(), parse_constant=refuse)
    by_itself = {name: [] if name in ("runs", "verdicts") else results[name] for name in results}
    assert documented(whole) == set(names_in(by_itself))
    assert documented(run) == {name for one in results["runs"] for name in names_in(one)}
    assert documented(verdict) == set(names_in(results["verdicts"][0]))


def test_arms_cost_the_same(compared):
    out, _ = compared
    runs = json.loads((out / "results.json").read_text())["runs"]
    passes = {(run["arm"], run["seed"]): run["costs"]["samples_forwarded"] for run in runs}
    for seed in (0, 1):
        assert passes["full", seed] == 3 * 256
        leader = passes["infobatch", seed]
        assert leader < 3 * 256
        assert abs(passes["random", seed] - leader) <= 2
        assert abs(passes["short", seed] - leader) <= 32, "within a batch"
    orders = {
        seed: next(run for run in runs if run["arm"] == "infobatch" and run["seed"] == seed)
        for seed in (0, 1)
    }
    assert orders[0]["history"] != orders[1]["history"], "each seed has its own draws"


def test_finished_runs_are_not_repeated_and_seeds_can_be_added(compared):
    out, _ = compared
    before = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    infobatch("compare", "fashion", "--smoke", "--seeds", 2, "--out", out)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    arguments = ("--arms", "full,infobatch", "--seeds", 3, "--out", out)
    infobatch("compare", "fashion", "--smoke", *arguments)
    assert (out / "runs" / "infobatch-2" / "result.json").exists()
    assert before.items() <= {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}.items()
    results = json.loads((out / "results.json").read_text())
    assert len(results["runs"]) == 12, "all that is there, not only what was asked for last"
    assert results["arms"] == ["full", "short", "random", "infobatch", "quantile"]
    refused = infobatch("compare", MY_TASK, "--smoke", "--out", out, check=False)
    assert refused.exit_code == 2
    assert "task = 'fashion' there, 'my_task' here" in refused.stderr
    assert "Choose another --out" in refused.stderr


def test_a_smoke_run_is_not_in_the_way_of_a_real_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    infobatch("compare", MY_TASK, "--smoke", "--arms", "full", "--seeds", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["compare-my_task-smoke"]


def without_times(result):
    """A result without what differs from run to run."""
    history = [{**epoch, "seconds": None} for epoch in result["history"]]
    costs = {
        name: value
        for name, value in result["costs"].items()
        if name not in ("seconds", "overhead_seconds", "peak_memory_mb")
    }
    return {**result, "history": history, "costs": costs}


def test_kill_9_loses_nothing_that_was_finished_and_the_rest_goes_on(tmp_path):
    arguments = ("fashion", "--smoke", "--arms", "full,infobatch", "--seeds", 2)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    infobatch("compare", *arguments, "--out", straight)
    stops = (
        (killed / "runs" / "full-0" / "checkpoint.pt").exists,
        (killed / "runs" / "full-0" / "result.json").exists,
        (killed / "runs" / "infobatch-1" / "checkpoint.pt").exists,
    )
    for number, reached in enumerate(stops):
        process = start(killed, *arguments)
        wait_for(lambda r=reached, p=process: r() or p.poll() is not None, f"stop {number}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        finished = {path: path.read_text() for path in killed.rglob("result.json")}
        wait_for(lambda: not children_of_run(killed), "the children ending with their parent")
        for path, text in finished.items():
            assert path.read_text() == text
    infobatch("compare", *arguments, "--out", killed)
    for path in straight.rglob("result.json"):
        expected = without_times(json.loads(path.read_text()))
        resumed = without_times(json.loads((killed / path.relative_to(straight)).read_text()))
        assert resumed == expected, "a run that was killed continues bit for bit"


def children_of_run(out):
    """The processes that train in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "infobatch.lab.run" in command and str(out) in command:
                found.append(entry.name)
    return found


def test_ctrl_c_says_how_to_go_on(tmp_path):
    # Tests that were started in the background ignore Ctrl-C, and so would their children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "infobatch.lab.cli",
            "compare",
            "fashion",
            "--smoke",
            "--out",
            tmp_path,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    signal.signal(signal.SIGINT, before)
    wait_for(lambda: list(tmp_path.rglob("checkpoint.pt")), "a checkpoint")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on from here." in errors
    assert not children_of_run(tmp_path)


@pytest.mark.slow
def test_a_sweep_gives_every_arm_the_same_grid(tmp_path):
    arguments = ("--smoke", "--arms", "full,short,infobatch", "--seeds", 1, "--out", tmp_path)
    infobatch("compare", MY_TASK, *arguments, "--learning-rates", "1e-9,0.003")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["chosen_rates"] == {"full": 0.003, "short": 0.003, "infobatch": 0.003}
    swept = [json.loads(p.read_text()) for p in (tmp_path / "sweep").rglob("result.json")]
    assert len(swept) == 6
    assert all(run["num_samples"] == 231 for run in swept), (
        "tuned on nine tenths, not on the test set"
    )
    assert all(run["settings"]["learning_rate"] == 0.003 for run in results["runs"])
    assert all(run["num_samples"] == 256 for run in results["runs"])
    assert (tmp_path / "report.html").read_text().count("<td>chosen</td>") == 3


def test_the_task_of_the_lab_page(tmp_path):
    (task,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/lab.md").read_text(), re.DOTALL)
    assert len(task.splitlines()) <= 60
    (tmp_path / "my_task.py").write_text(task)
    arguments = ("--smoke", "--arms", "full,infobatch", "--seeds", 1, "--out", tmp_path / "out")
    told = infobatch("compare", tmp_path / "my_task.py", *arguments).stdout
    assert "infobatch: not enough seeds to tell: about 4 more" in told


def test_a_failing_task_is_told_without_a_traceback(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(MY_TASK.read_text().replace('reduction="none"', 'reduction="mean"'))
    arguments = ("--smoke", "--arms", "full", "--seeds", 1, "--out", tmp_path / "out")
    run = infobatch("compare", broken, *arguments, check=False)
    assert run.exit_code == 1
    assert "update() got a scalar, expected one loss a sample" in run.stderr
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
        (("compare", "fashion", "--arms", "full,short"), "Add infobatch"),
        (("compare", "fashion", "--arms", "full,full"), "each arm once"),
        (("compare", "fashion", "--learning-rates", "a,b"), "expected positive numbers"),
        (("compare", "fashion", "--set", "optimizer"), "expected name=value"),
        (("compare", "fashion", "--set", "nonsense=1"), "has no option 'nonsense'"),
        (("report", "nowhere"), "There is no nowhere"),
    ],
)
def test_errors_in_words(arguments, message, tmp_path):
    out = ("--out", tmp_path) if arguments[0] == "compare" else ()
    run = infobatch(*arguments, *out, check=False)
    assert run.exit_code == 2
    assert message in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_lists_and_help(tmp_path):
    told = infobatch("recipes", "--data", tmp_path).stdout
    for name in ("fashion", "cifar10", "covertype", "camvid", "mae", "diffusion", "alpaca"):
        assert name in told
    assert "missing data: covtype.npz" in told
    told = infobatch("policies").stdout
    for name in ("mean", "quantile", "random", "none"):
        assert name in told
    for command in ("demo", "compare", "report", "recipes", "policies"):
        assert "Usage" in infobatch(command, "--help").stdout


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
    assert {"accuracy", "infobatch/kept_fraction", "infobatch/samples_saved"} <= set(
        events.Tags()["scalars"]
    )
    assert [event.step for event in events.Scalars("accuracy")] == [0, 1, 2]
    assert list((tmp_path / "wandb").rglob("*.wandb")), "the offline run is on disk"


def test_tasks_and_arms():
    task = load_task(str(MY_TASK))
    assert (task.name, task.epochs, task.margin) == ("my_task", 8, 0.5)
    with pytest.raises(TaskError, match="--set works for recipes"):
        load_task(str(MY_TASK), options={"a": "b"})
    with pytest.raises(
        TaskError, match=r"--data works for recipes; .* os.environ\['INFOBATCH_DATA'\]"
    ):
        load_task(str(MY_TASK), data=Path("somewhere"))
    assert leader_of(parse_arms("full,quantile,infobatch,short")) == Arm("infobatch")
    assert leader_of(parse_arms("quantile,short")) == Arm("quantile")
    assert leader_of(parse_arms("full")) is None


def test_a_task_imports_its_neighbours_and_has_dataclasses(tmp_path):
    """In the parent and, as the comparison runs, in the runs' own processes."""
    (tmp_path / "neighbour_nets.py").write_text(
        "from torch import nn\n\ndef network():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    text = MY_TASK.read_text().replace("import torch\n", DATACLASS + "import torch\n", 1)
    text = text.replace("def model():", "def model():\n    return network()\n\n\ndef unused():")
    (tmp_path / "with_neighbours.py").write_text("from __future__ import annotations\n" + text)
    arguments = ("--smoke", "--arms", "full", "--seeds", 1, "--out", tmp_path / "out")
    infobatch("compare", tmp_path / "with_neighbours.py", *arguments)
    assert (tmp_path / "out" / "runs" / "full-0" / "result.json").exists()
    task = load_task(str(tmp_path / "with_neighbours.py"))
    assert len(task.model()) == 2
    assert sys.modules["with_neighbours"].losses is task.losses, "workers find it by its name"


DATACLASS = """from dataclasses import dataclass

from neighbour_nets import network


@dataclass
class Settings:
    width: int = 3


"""


def test_a_task_with_the_name_of_another_module_is_refused(tmp_path):
    before = sys.modules["json"]
    (tmp_path / "json.py").write_text(MY_TASK.read_text())
    with pytest.raises(TaskError, match=r"has the name of another module, 'json'. Rename the file"):
        load_task(str(tmp_path / "json.py"))
    assert sys.modules["json"] is before
    assert str(tmp_path) not in sys.path


def test_a_failed_import_leaves_no_module(tmp_path):
    (tmp_path / "half_a_task.py").write_text("epochs = 3\nraise ValueError('no')")
    with pytest.raises(TaskError, match="fails on import: ValueError: no"):
        load_task(str(tmp_path / "half_a_task.py"))
    assert "half_a_task" not in sys.modules


@pytest.mark.parametrize("page", ["examples/my_task.py", "docs/lab.md"])
def test_the_documented_tasks_evaluate_on_the_models_device(page, tmp_path):
    """On the meta device, which holds no numbers: the measurement gets as far as reading one."""
    text = (ROOT / page).read_text()
    if page.endswith(".md"):
        (text,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "documented.py").write_text(text)
    task = load_task(str(tmp_path / "documented.py"))
    _, test = task.data()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        task.evaluate(task.model().to("meta"), test)


# What a person sees.


@pytest.fixture
def small_margin(tmp_path):
    """A comparison with a sweep, of a task where thousandths matter."""
    (tmp_path / "fine.py").write_text(MY_TASK.read_text().replace("margin = 0.5", "margin = 0.001"))
    arms = parse_arms("full,infobatch")
    rates = [0.1, 0.3]
    return Comparison(str(tmp_path / "fine.py"), arms, 1, tmp_path / "out", learning_rates=rates)


def event(epoch, metric, done):
    last = None if epoch == 0 else {"metric": metric}
    return {"arm": "full", "seed": 0, "epoch": epoch, "epochs": 8, "done": done, "last": last}


def text_of(table):
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


def test_the_live_table(small_margin, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now))
    old = run_folder(small_margin.out, "infobatch-0.1", 0, kind="sweep")
    old.mkdir(parents=True)
    (old / "result.json").write_text('{"metric": 0.5}')  # of an earlier sitting
    console = Console(file=io.StringIO(), width=200)
    shown = LiveTable(console, small_margin)
    assert shown.time_left() == "time left: not known yet"
    tried = [
        Job("full", 0, run_folder(small_margin.out, f"full-{rate}", 0, kind="sweep"), ())
        for rate in small_margin.learning_rates
    ]
    for number, job in enumerate(tried):
        shown.watch(small_margin, job, event(1, 0.51234 + number, 0.25))
    clock.now += 10
    assert shown.time_left() == "time left: about 90 s", "half of five runs in ten seconds"
    shown.watch(small_margin, tried[0], event(2, None, 0.5))
    told = text_of(shown.table())
    assert "learning rate 0.1: epoch 2/8, 0.51234, learning rate 0.3: epoch 1/8, 1.51234" in told
    for job in tried:
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").write_text('{"metric": 0.12345678}')
        shown.watch(small_margin, job, {"finished": True})
    assert "sweep/full-0.1-0: accuracy 0.12346" in console.file.getvalue()
    clock.now += 10
    assert shown.time_left() == "time left: about 30 s", "two of five in twenty seconds"
    shown.watch(small_margin, small_margin.jobs()[0], event(0, None, 0.0))
    assert "seed 0: epoch 0/8 " in text_of(shown.table())


def test_as_many_decimals_as_the_margin_needs(small_margin):
    costs = {"samples_forwarded": 9, "samples_backpropagated": 9, "optimizer_steps": 3}
    costs |= {"seconds": 1.0, "overhead_seconds": 0.1, "peak_memory_mb": 300.0}
    for arm, seed, metric in (("full", 0, 0.2), ("infobatch", 0, 0.20123)):
        run = {"arm": arm, "seed": seed, "settings": {}, "metric": metric, "saved_fraction": 0.3}
        folder = run_folder(small_margin.out, arm, seed)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({**run, "costs": costs}))
    results = small_margin.collect()
    assert "0.20123" in text_of(results_table(results))
    (line,) = answers(results)
    assert line.startswith(
        "infobatch: not enough seeds to tell: about 4 more. Difference to full: "
    )
    assert "+0.00123 (one seed, no interval)" in line
