"""What a person sees while a comparison runs, and at its end."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from infobatch.lab.compare import live
from infobatch.lab.compare.answer import headline, notes, print_answer, results_table
from infobatch.lab.compare.comparison import Comparison
from infobatch.lab.compare.jobs import Job
from infobatch.lab.compare.live import LiveTable
from infobatch.lab.compare.results import read_results, sweep_folder
from infobatch.lab.run.arms import parse_arms

MY_TASK = Path(__file__).parents[3] / "examples" / "my_task.py"
TINY = Path(__file__).parents[2] / "support/tiny_task.py"


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


def text_of(table, width=200):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_the_live_table(small_margin, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now))
    out = small_margin.out
    old = sweep_folder(out, "infobatch", 0.1, 100_000)
    old.mkdir(parents=True)
    (old / "result.json").write_text('{"metric": 0.5}')  # of an earlier command
    console = Console(file=io.StringIO(), width=200)
    shown = LiveTable(console, small_margin)
    assert shown.time_left() == "time left: not known yet"
    tried = [
        Job(
            "full",
            100_000,
            sweep_folder(out, "full", rate, 100_000),
            ("--learning-rate", f"{rate}"),
        )
        for rate in (0.1, 0.3)
    ]
    shown.watch(small_margin, tried[0], {"started": True})
    assert "learning rate 0.1, seed 100000: starting" in text_of(shown.table())
    for number, job in enumerate(tried):
        shown.watch(small_margin, job, event(1, 0.51234 + number, 0.25))
    clock.now += 10
    assert shown.time_left() == "time left: about 90 s", "half of five runs in ten seconds"
    shown.watch(small_margin, tried[0], event(2, None, 0.5))
    output = text_of(shown.table())
    assert "learning rate 0.1, seed 100000: epoch 2/8, 0.51234 " in output
    assert "learning rate 0.3, seed 100000: epoch 1/8, 1.51234 " in output
    for job in tried:
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").write_text('{"metric": 0.12345678}')
        shown.watch(small_margin, job, {"finished": True})
    assert "sweep/full-0.1-100000: accuracy 0.12346" in console.file.getvalue()
    clock.now += 10
    assert shown.time_left() == "time left: about 30 s", "two of five in twenty seconds"
    shown.watch(small_margin, small_margin.jobs()[0], event(0, None, 0.0))
    assert "seed 0: epoch 0/8 " in text_of(shown.table())


def test_as_many_decimals_as_the_margin_needs(comparison):
    results = json.loads((comparison / "results.json").read_text())
    assert "accuracy" in text_of(results_table(results))
    for run, metric in zip(results["runs"], (0.2, 0.20123, 0.3, 0.4), strict=False):
        run["metric"] = metric
    results["runs"], results["margin"] = results["runs"][:2], 0.001
    assert "0.20123" in text_of(results_table(results))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_nothing_is_cropped(comparison, width):
    """At any width, and so in a pipe, where a terminal of 80 columns is assumed."""
    results = read_results(comparison)
    console = Console(file=io.StringIO(), width=width)
    print_answer(console, results)
    output = console.file.getvalue()
    assert "…" not in output
    assert headline(results) in output
    for line in notes(results):
        assert line in output
    letters = "".join(text_of(results_table(results)).split())
    assert sorted(letters.replace("─", "")) == sorted(
        "".join(text_of(results_table(results), width).split()).replace("─", "")
    ), "every letter of the wide table"


def test_why_intervals_in_the_decision_are_wider_is_said(comparison):
    results = json.loads((comparison / "results.json").read_text())
    assert "intervals in the decision are" in results["level"]
    assert results["level"] in notes(results)
    results["seeds"] = [0]
    assert results["level"] not in notes(results), "one seed has no intervals"


def test_one_seed_shows_differences_instead_of_verdicts(comparison):
    results = json.loads((comparison / "results.json").read_text())
    several = text_of(results_table(results))
    assert "not decided" in several or "lossless" in several or "worse" in several
    results["seeds"] = [0]
    single = text_of(results_table(results))
    assert "not decided" not in single
    assert not [line for line in notes(results) if line.startswith("infobatch: ")]


def test_a_control_says_whose_cost_it_has_beside_a_third_arm(comparison):
    results = json.loads((comparison / "results.json").read_text())
    assert "random*" not in text_of(results_table(results)), "infobatch is the only other one"
    results["arms"].append("quantile")
    assert "random*" in text_of(results_table(results))
    assert "* random has the same cost as infobatch." in notes(results)


def test_a_verdict_that_changed_is_told(comparison):
    results = json.loads((comparison / "results.json").read_text())
    verdict = results["verdicts"][-1]
    verdict["earlier"] = [{"seeds": 3, "word": "lossless"}]
    assert verdict["length"] == 1.0
    (line,) = [line for line in notes(results) if line.startswith(f"{verdict['arm']}: ")]
    assert line.endswith("changed as seeds were added; it was “lossless” with 3 seeds.")


def with_rates(results, chosen, *, seeds=3, behind=0.0):
    """Results after a grid of three rates, of which these are the chosen ones."""
    grid = [0.1, 0.2, 0.4]
    rates = [
        {
            "arm": arm, "learning_rate": rate, "count": seeds, "mean": 80.0, "sd": 0.1,
            "behind": behind if rate == chosen[arm] else 0.5, "standard_error": 0.1,
            "tied": rate == chosen[arm], "chosen": rate == chosen[arm],
        }
        for arm in chosen
        for rate in grid
    ]  # fmt: skip
    cost = {"runs": 36, "samples_forwarded": 90, "share": 0.2, "seconds": 1.0}
    tried = [{"arm": "full", "learning_rate": 0.1, "seed": 100_000, "metric": 80.0}]
    results |= {"learning_rates": grid, "rate_seeds": seeds, "rates": rates, "rate_cost": cost}
    return results | {"tried_rates": tried, "chosen_rates": chosen}


def grid_line(results):
    (line,) = [line for line in notes(results) if line.startswith("Learning rates 0.1, 0.2, 0.4 ")]
    return line


def test_what_the_choice_of_rates_cost_and_how_it_was_made(comparison):
    results = json.loads((comparison / "results.json").read_text())
    line = grid_line(with_rates(results, {"full": 0.2}))
    assert line == (
        "Learning rates 0.1, 0.2, 0.4 were tried for every arm on a validation split, at 0.5 × the "
        "epochs, with 3 seeds outside the comparison: 36 runs, 20% of all sample passes. The rate "
        "with the best mean is chosen; among rates within one standard error of it, the task's own (0.2), or else the "
        "one nearest to the middle of the grid."
    )
    line = grid_line(with_rates(results, {"full": 0.2}, seeds=1))
    assert "with one seed outside the comparison" in line
    assert line.endswith("One seed cannot tell close rates apart, so the choice is partly luck.")


def test_a_rate_at_the_end_of_the_grid_is_pointed_out(comparison):
    results = json.loads((comparison / "results.json").read_text())
    ends = {"full": 0.4, "infobatch": 0.2, "random": 0.1}
    assert grid_line(with_rates(results, ends)).endswith(
        "full, random are best at an end of the grid: a wider grid may do better."
    )
    tied = with_rates(results, {"full": 0.4}, behind=0.05)
    assert "end of the grid" not in grid_line(tied), "it was chosen to break a tie"


def test_without_a_grid_it_says_that_rates_were_not_tuned(comparison):
    results = json.loads((comparison / "results.json").read_text())
    line = (
        "Every arm was trained with the task's learning rate, 0.2, which may suit some arms better than others. "
        "With --learning-rates, each gets its best rate from the same grid."
    )
    assert line in notes(results)
    assert line not in notes({**results, "arms": ["full"]}), "there is nothing to compare"
    assert line not in notes(with_rates(results, {"full": 0.2}))


def test_seconds_of_different_machines_cannot_be_compared(comparison):
    results = json.loads((comparison / "results.json").read_text())
    assert not any("different machines" in line for line in notes(results))
    assert "CPU seconds" in text_of(results_table(results))
    for run in results["runs"]:
        run["hardware"] |= {"processor": "Old", "threads": 1}
    results["runs"][-1]["hardware"] |= {"processor": "New", "threads": 2}
    results |= {"compared_seconds": None, "frontier_by_seconds": None}
    assert (
        "Runs of the same seed were made on different machines (Old, 1 thread; New, 2 threads), so their "
        "seconds cannot be compared. Sample passes can."
    ) in notes(results)
    assert "CPU seconds" not in text_of(results_table(results))


def test_advice_to_add_seeds_says_that_it_is_a_stopping_rule(comparison):
    results = json.loads((comparison / "results.json").read_text())
    assert any(verdict["outcome"]["more_seeds"] for verdict in results["verdicts"])
    (line,) = [line for line in notes(results) if "stopping rule" in line]
    assert "raises the error from 2.5% to 6–11%" in line
    assert "states --most-seeds before its first run" in line
    results["most_seeds"] = 20
    assert not any("stopping rule" in line for line in notes(results))


def test_before_full_data_is_finished(tmp_path):
    comparison = Comparison(str(TINY), parse_arms("full,infobatch"), 1, tmp_path)
    results = comparison.collect()
    assert headline(results) == "Not decided: no run on all data is finished yet."
    console = Console(file=io.StringIO(), width=80)
    print_answer(console, results)
    assert "Not decided" in console.file.getvalue()
