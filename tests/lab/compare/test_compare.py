"""The command line and its comparison, for real: child processes, kills, resumes, verdicts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infobatch.lab.cli import app
from infobatch.lab.stats.rates import RateSummary

ROOT = Path(__file__).parents[3]
MY_TASK = ROOT / "examples" / "my_task.py"
ARMS = ["full", "short", "random", "infobatch", "quantile", "auto"]


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
    arguments = ("--lengths", "1", "--seeds", 2, "--jobs", 2, "--out", out)
    run = infobatch("compare", "fashion", "--smoke", *arguments)
    return out, run.stdout


def test_a_comparison_leaves_results_report_and_a_table(compared):
    out, printed = compared
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == 2
    assert results["task"] == "fashion"
    assert results["margin"] == 0.5
    assert {(run["arm"], run["seed"]) for run in results["runs"]} == {
        (arm, seed) for arm in ARMS for seed in (0, 1)
    }
    for run in results["runs"]:
        assert run["metric"] == run["history"][-1]["metric"], "the last epoch's, not the best one's"
        costs = run["costs"]
        assert costs["samples_forwarded"] == costs["samples_backpropagated"] > 0
        assert costs["optimizer_steps"] > 0
        assert costs["peak_memory_mb"] > 50
        assert run["versions"]["torch"]
    compared_arms = set(ARMS) - {"full", "short"}
    assert {verdict["arm"] for verdict in results["verdicts"]} == compared_arms, (
        "short is full's curve"
    )
    assert len(results["frontier"]["curve"]) == 2
    lines = printed.splitlines()
    assert results["decision"]["sentence"] in lines, "the decision, on a line of its own"
    assert lines.index(results["decision"]["sentence"]) < lines.index(results["gate"]["text"])
    for verdict in results["verdicts"]:
        assert f"{verdict['arm']}: {verdict['outcome']['text']}" in lines
    assert "* short and random have the same cost as infobatch." in lines
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
OPEN = {
    "options", "settings.options", "chosen_rates", "versions", "hardware", "extra_metrics", "shadows",
}  # fmt: skip


def test_the_schema_page_names_every_field(compared, comparison):
    page = (ROOT / "docs" / "results-schema.md").read_text()
    parts = re.split(r"^## .*$", page, flags=re.MULTILINE)
    whole, run, verdict, frontier, *_ = parts

    def documented(section):
        cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        return {name for cell in cells for name in re.findall("`(.+?)`", cell)}

    def not_json(constant):
        raise AssertionError(f"{constant} is not JSON")

    def named(values):
        return {name for value in values for name in names_in(value)}

    texts = [(folder / "results.json").read_text() for folder in (compared[0], comparison)]
    every = [json.loads(text, parse_constant=not_json) for text in texts]
    elsewhere = ("runs", "verdicts", "frontier", "frontier_by_seconds", "tried_rates", "rates")
    by_itself = [
        {name: [] if name in elsewhere else result[name] for name in result} for result in every
    ]
    assert leaves(documented(whole)) == leaves(named(by_itself) | TRIED)
    assert documented(run) == named(run for result in every for run in result["runs"])
    verdicts = named(verdict for result in every for verdict in result["verdicts"])
    verdicts = {name.replace("to_random.", "to_random:").partition(":")[0] for name in verdicts}
    assert leaves(documented(verdict)) == leaves(verdicts | EARLIER)
    frontiers = {name for name in named(result["frontier"] for result in every) if "." not in name}
    assert frontiers <= documented(frontier)
    for part in ("curve", "points", "reaches"):
        first = {
            f"{part}[].{name}"
            for result in every
            for item in result["frontier"][part]
            for name in item
        }
        assert first <= documented(frontier), part


def leaves(names):
    """The names without those of what others are inside of."""
    return {
        name
        for name in names
        if not any(other.startswith((f"{name}.", f"{name}[]")) for other in names)
    }


TRIED = {
    f"tried_rates[].{name}"
    for name in ("arm", "learning_rate", "seed", "metric", "samples_forwarded", "seconds")
}
TRIED |= {f"rates[].{name}" for name in RateSummary.__dataclass_fields__}
TRIED |= {f"rate_cost.{name}" for name in ("runs", "samples_forwarded", "share", "seconds")}
EARLIER = {"earlier[].seeds", "earlier[].word"}


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
    infobatch("compare", "fashion", "--smoke", "--lengths", "1", "--seeds", 2, "--out", out)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    arguments = ("--lengths", "1", "--arms", "full,infobatch", "--seeds", 3, "--out", out)
    infobatch("compare", "fashion", "--smoke", *arguments)
    assert (out / "runs" / "infobatch-1-2" / "result.json").exists()
    assert before.items() <= {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}.items()
    results = json.loads((out / "results.json").read_text())
    assert len(results["runs"]) == 14, "all that is there, not only what was asked for last"
    assert results["arms"] == ARMS
    failed = infobatch("compare", MY_TASK, "--smoke", "--lengths", "1", "--out", out, check=False)
    assert failed.exit_code == 2
    assert "task = 'fashion' there, 'my_task' here" in failed.stderr
    assert "Choose another --out" in failed.stderr


def test_a_smoke_run_is_not_in_the_way_of_a_real_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    infobatch("compare", MY_TASK, "--smoke", "--lengths", "1", "--arms", "full", "--seeds", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["compare-my_task-smoke"]


def without_times(result):
    """A result without what differs from run to run."""
    history = [{**epoch, "seconds": None} for epoch in result["history"]]
    costs = {
        name: value
        for name, value in result["costs"].items()
        if not name.endswith("seconds") and name != "peak_memory_mb"
    }
    return {**result, "history": history, "costs": costs, "finished_at": None}


def test_kill_9_loses_nothing_that_was_finished_and_the_rest_continues(tmp_path):
    arguments = ("fashion", "--smoke", "--lengths", 1, "--arms", "full,infobatch", "--seeds", 1)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    infobatch("compare", *arguments, "--out", straight)
    stops = (
        (killed / "runs" / "full-1-0" / "checkpoint.pt").exists,
        (killed / "runs" / "full-1-0" / "result.json").exists,
        (killed / "runs" / "infobatch-1-0" / "checkpoint.pt").exists,
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
    names = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "infobatch.lab.run" in command and str(out) in command:
                names.append(entry.name)
    return names


def test_ctrl_c_says_how_to_resume(tmp_path):
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
    assert "Stopped. Run the same command to resume." in errors
    assert not children_of_run(tmp_path)


@pytest.mark.slow
def test_a_grid_of_learning_rates_and_a_sequential_design_for_real(tmp_path):
    arguments = ("--smoke", "--arms", "full,infobatch", "--seeds", 3, "--most-seeds", 4)
    arguments += ("--lengths", "0.5,1", "--jobs", 2, "--out", tmp_path)
    arguments += ("--learning-rates", "1e-9,0.003", "--rate-seeds", 2)
    output = infobatch("compare", MY_TASK, *arguments).stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["chosen_rates"] == {"full": 0.003, "infobatch": 0.003}
    tried = [json.loads(path.read_text()) for path in (tmp_path / "sweep").rglob("result.json")]
    assert len(tried) == 8
    assert all(run["num_samples"] == 205 for run in tried), "four fifths, not the test set"
    assert all(run["settings"]["learning_rate"] == 0.003 for run in results["runs"])
    assert all(run["num_samples"] == 256 for run in results["runs"])
    assert (tmp_path / "report.html").read_text().count("<td>chosen</td>") == 2
    assert "Learning rates 1e-09, 0.003 were tried for every arm" in output
    is_open = results["decision"]["more_seeds"] is not None
    assert is_open or results["decision"]["kind"] != "not decided"
    assert not is_open or len(results["seeds"]) == 4, "seeds are added until it is decided"
