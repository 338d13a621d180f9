"""What a person sees while a comparison runs, and at its end."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from infobatch.lab.compare import live
from infobatch.lab.compare.answer import headline, notes, print_answer, results_table
from infobatch.lab.compare.comparison import Comparison
from infobatch.lab.compare.jobs import Job
from infobatch.lab.compare.live import LiveTable
from infobatch.lab.compare.results import RateCost, read_results, sweep_folder
from infobatch.lab.run.arms import parse_arms
from infobatch.lab.run.result import write_result
from infobatch.lab.stats.rates import RateSummary
from infobatch.lab.stats.runs import Costs, Record
from infobatch.lab.stats.verdict import Earlier

MY_TASK = Path(__file__).parents[3] / "examples" / "my_task.py"
TINY = Path(__file__).parents[2] / "support/tiny_task.py"


@pytest.fixture
def small_margin(tmp_path):
    """A comparison with a sweep, of a task where thousandths matter."""
    (tmp_path / "fine.py").write_text(MY_TASK.read_text().replace("margin = 0.5", "margin = 0.001"))
    arms = parse_arms("full,infobatch")
    rates = [0.1, 0.3]
    return Comparison(str(tmp_path / "fine.py"), arms, 1, tmp_path / "out", learning_rates=rates)


def finish(folder, metric):
    """Leave the record of a finished run in its folder."""
    record = Record(
        arm="full", length=1.0, seed=100_000, settings={}, metric=metric, costs=Costs(),
        num_samples=1, num_test=1, full_passes=1, saved_fraction=0.0, history=(), versions={},
        hardware={}, finished_at="",
    )  # fmt: skip
    folder.mkdir(parents=True)
    write_result(folder, record)


def changed(results, *, conclusions=None, runs=None, **settings):
    """Results in which something else was set, concluded or run."""
    return replace(
        results,
        settings=replace(results.settings, **settings),
        conclusions=replace(results.conclusions, **(conclusions or {})),
        runs=results.runs if runs is None else runs,
    )


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
    finish(sweep_folder(out, "infobatch", 0.1, 100_000), 0.5)  # by an earlier command
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
        finish(job.folder, 0.12345678)
        shown.watch(small_margin, job, {"finished": True})
    assert "sweep/full-0.1-100000: accuracy 0.12346" in console.file.getvalue()
    clock.now += 10
    assert shown.time_left() == "time left: about 30 s", "two of five in twenty seconds"
    shown.watch(small_margin, small_margin.jobs()[0], event(0, None, 0.0))
    assert "seed 0: epoch 0/8 " in text_of(shown.table())


def test_as_many_decimals_as_the_margin_needs(comparison):
    results = read_results(comparison)
    assert "accuracy" in text_of(results_table(results))
    runs = tuple(replace(run, metric=0.20123) for run in results.runs[:1])
    fine = changed(results, runs=runs, margin=0.001)
    assert "0.20123" in text_of(results_table(fine))


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
    results = read_results(comparison)
    level = results.conclusions.level
    assert "intervals in the decision are" in level
    assert level in notes(results)
    assert level not in notes(changed(results, seeds=(0,))), "one seed has no intervals"


def test_one_seed_shows_differences_instead_of_verdicts(comparison):
    results = read_results(comparison)
    several = text_of(results_table(results))
    assert "not decided" in several or "lossless" in several or "worse" in several
    results = changed(results, seeds=(0,))
    single = text_of(results_table(results))
    assert "not decided" not in single
    assert not [line for line in notes(results) if line.startswith("infobatch: ")]


def test_a_control_says_whose_cost_it_has_beside_a_third_arm(comparison):
    results = read_results(comparison)
    assert "random*" not in text_of(results_table(results)), "infobatch is the only other one"
    results = changed(results, arms=(*results.settings.arms, "quantile"))
    assert "random*" in text_of(results_table(results))
    assert "* random has the same cost as infobatch." in notes(results)


def test_a_verdict_that_changed_is_told(comparison):
    results = read_results(comparison)
    *others, last = results.conclusions.verdicts
    verdict = replace(last, earlier=(Earlier(3, "lossless"),))
    assert verdict.length == 1.0
    results = changed(results, conclusions={"verdicts": (*others, verdict)})
    (line,) = [line for line in notes(results) if line.startswith(f"{verdict.arm}: ")]
    assert line.endswith("changed as seeds were added; it was “lossless” with 3 seeds.")


def with_rates(results, chosen, *, seeds=3, behind=0.0):
    """Results after a grid of three rates, of which these are the chosen ones."""
    grid = [0.1, 0.2, 0.4]
    rates = tuple(
        RateSummary(
            arm, rate, seeds, 80.0, 0.1, behind if rate == chosen[arm] else 0.5, 0.1,
            tied=rate == chosen[arm], chosen=rate == chosen[arm],
        )
        for arm in chosen
        for rate in grid
    )  # fmt: skip
    return changed(
        results,
        learning_rates=tuple(grid),
        rate_seeds=seeds,
        rate_length=0.5,
        rates=rates,
        rate_cost=RateCost(runs=36, samples_forwarded=90, share=0.2, seconds=1.0),
        chosen_rates=chosen,
    )


def grid_line(results):
    (line,) = [line for line in notes(results) if line.startswith("Learning rates 0.1, 0.2, 0.4 ")]
    return line


def test_what_the_choice_of_rates_cost_and_how_it_was_made(comparison):
    results = read_results(comparison)
    line = grid_line(with_rates(results, {"full": 0.2}))
    assert line == (
        "Learning rates 0.1, 0.2, 0.4 were tried for every arm on a validation split, at 0.5 × the "
        "epochs, with 3 seeds outside the comparison: 36 runs, 20% of all sample passes. The rate "
        "with the best mean is chosen; among rates within one standard error of it, the task's own (0.2) if it is "
        "inside the grid, or else the one nearest to its middle."
    )
    line = grid_line(with_rates(results, {"full": 0.2}, seeds=1))
    assert "with one seed outside the comparison" in line
    assert line.endswith("One seed cannot tell close rates apart, so the choice is partly luck.")


def test_a_rate_at_the_end_of_the_grid_is_pointed_out(comparison):
    results = read_results(comparison)
    ends = {"full": 0.4, "infobatch": 0.2, "random": 0.1}
    assert grid_line(with_rates(results, ends)).endswith(
        "full, random are best at an end of the grid: a wider grid may do better."
    )
    tied = with_rates(results, {"full": 0.4}, behind=0.05)
    assert "end of the grid" not in grid_line(tied), "it was chosen to break a tie"


def test_without_a_grid_it_says_that_rates_were_not_tuned(comparison):
    results = read_results(comparison)
    line = (
        "Every arm was trained with the task's learning rate, 0.2, which may suit some arms better than others. "
        "With --learning-rates, each gets its best rate from the same grid."
    )
    assert line in notes(results)
    assert line not in notes(changed(results, arms=("full",))), "there is nothing to compare"
    assert line not in notes(with_rates(results, {"full": 0.2}))


def test_seconds_of_different_machines_cannot_be_compared(comparison):
    results = read_results(comparison)
    assert not any("different machines" in line for line in notes(results))
    assert "CPU seconds" in text_of(results_table(results))
    *runs, last = (
        replace(run, hardware={"processor": "Old", "model": "1", "threads": 1})
        for run in results.runs
    )
    last = replace(last, hardware={"processor": "New", "model": "2", "threads": 2})
    unknown = {"compared_seconds": None, "frontier_by_seconds": None}
    results = changed(results, runs=(*runs, last), conclusions=unknown)
    assert (
        "Runs of the same seed were made on different machines (Old (1), 1 thread; New (2), 2 threads), so "
        "their seconds cannot be compared. Sample passes can."
    ) in notes(results)
    assert "CPU seconds" not in text_of(results_table(results))


def test_advice_to_add_seeds_says_that_it_is_a_stopping_rule(comparison):
    results = read_results(comparison)
    assert any(verdict.more_seeds for verdict in results.conclusions.verdicts)
    (line,) = [line for line in notes(results) if "stopping rule" in line]
    assert "raises the error from 2.5% to 6–11%" in line
    assert "states --most-seeds before its first run" in line
    sequential = changed(results, most_seeds=20)
    assert not any("stopping rule" in line for line in notes(sequential))


def test_before_full_data_is_finished(tmp_path):
    comparison = Comparison(str(TINY), parse_arms("full,infobatch"), 1, tmp_path)
    results = comparison.collect()
    assert headline(results) == "Not decided: no run on all data is finished yet."
    console = Console(file=io.StringIO(), width=80)
    print_answer(console, results)
    assert "Not decided" in console.file.getvalue()
