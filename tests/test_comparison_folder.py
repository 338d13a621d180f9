"""What a comparison's folder holds: runs of one making, all of them, at equal cost."""

import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from infobatch.lab.arms import parse_arms
from infobatch.lab.comparison import Comparison
from infobatch.lab.report import write_report
from infobatch.lab.results import read_results
from infobatch.lab.run import main, run_once

TINY = Path(__file__).parent / "tiny_task.py"
run_app = typer.Typer()
run_app.command()(main)


def compare(out, arms, seeds, task=TINY, **options):
    """Ask for a comparison and make its runs, here and not in child processes."""
    comparison = Comparison(str(task), parse_arms(arms), seeds, out, **options)
    for job in comparison.jobs():
        if job.result is None:
            arguments = [part for part in job.command()[3:] if part != "--events"]
            made = CliRunner().invoke(run_app, arguments)
            assert made.exit_code == 0, made.output
    return comparison.collect()


def edited(folder, old, new):
    """A file of the same name with another text."""
    text = TINY.read_text()
    assert old in text
    folder.mkdir(exist_ok=True)
    path = folder / TINY.name
    path.write_text(text.replace(old, new))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    compare(out, "full,infobatch", 2)
    return out


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("epochs = 4", "epochs = 8", "epochs = 4 there, 8 here"),
        ("batch_size = 8", "batch_size = 16", "batch_size = 8 there, 16 here"),
        ("learning_rate = 0.01", "learning_rate = 0.1", "learning_rate = 0.01 there, 0.1 here"),
        ("margin = 0.5", "margin = 5.0", "margin = 0.5 there, 5.0 here"),
        ('metric = "accuracy"', 'metric = "score"', "metric = 'accuracy' there, 'score' here"),
        ("better = True", "better = False", "higher_is_better = True there, False here"),
        ("nn.Linear(4, 2)", "nn.Linear(4, 3)", "the text of the task's file has changed"),
    ],
)
def test_an_edited_task_is_refused_with_what_differs(finished, tmp_path, old, new, told):
    task = edited(tmp_path / "another", old, new)
    with pytest.raises(ValueError, match="Choose another --out, or delete") as caught:
        Comparison(str(task), parse_arms("full,infobatch"), 3, finished)
    assert told in str(caught.value)
    assert str(finished) in str(caught.value)


def test_the_same_text_from_elsewhere_goes_on(finished, tmp_path):
    moved = shutil.copy(TINY, tmp_path)
    comparison = Comparison(str(moved), parse_arms("full,infobatch"), 2, finished)
    assert all(job.result is not None for job in comparison.jobs())


def test_a_recipes_options_are_part_of_it(tmp_path):
    chosen = {"smoke": True, "options": {"optimizer": "adamw"}}
    results = compare(tmp_path, "full", 1, task="fashion", **chosen)
    assert results["runs"][0]["settings"]["options"] == {"optimizer": "adamw"}
    assert len(compare(tmp_path, "full", 2, task="fashion", **chosen)["runs"]) == 2
    with pytest.raises(ValueError, match=r"options = \{'optimizer': 'adamw'\} there, \{\} here"):
        Comparison("fashion", parse_arms("full"), 1, tmp_path, smoke=True)


def test_a_task_can_be_mended_before_anything_is_finished(tmp_path):
    out = tmp_path / "out"
    broken = edited(tmp_path / "broken", 'reduction="none"', 'reduction="mean"')
    with pytest.raises(AssertionError, match="expected one loss a sample"):
        compare(out, "full", 1, task=broken)
    shutil.copy(TINY, broken)
    assert len(compare(out, "full", 1, task=broken)["runs"]) == 1


def test_a_file_that_is_edited_while_its_comparison_runs(tmp_path):
    task = shutil.copy(TINY, tmp_path)
    comparison = Comparison(str(task), parse_arms("full"), 2, tmp_path / "out")
    edited(tmp_path, "epochs = 4", "epochs = 5")
    (job, *_) = comparison.jobs()
    CliRunner().invoke(run_app, [part for part in job.command()[3:] if part != "--events"])
    assert job.result["settings"]["epochs"] == 5
    with pytest.raises(ValueError, match=r"full, seed 0 .*epochs = 5 there, 4 here"):
        comparison.collect()


def test_a_sweep_of_another_text_is_not_taken_over(tmp_path):
    run_once(
        str(TINY), tmp_path / "sweep" / "full-0.1-0", arm="full", seed=0, data=None, smoke=False,
        options={}, budget=None, learning_rate=0.1, validation=True, events=True,
    )  # fmt: skip
    same = Comparison(str(TINY), parse_arms("full"), 1, tmp_path, learning_rates=[0.1, 0.2])
    assert same.jobs()[0].result is None
    task = edited(tmp_path / "another", "epochs = 4", "epochs = 8")
    with pytest.raises(ValueError, match="epochs = 4 there, 8 here"):
        Comparison(str(task), parse_arms("full"), 1, tmp_path, learning_rates=[0.1, 0.2])


def test_results_are_made_of_every_finished_run(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    results = compare(out, "quantile", 1)
    assert results["arms"] == ["full", "infobatch", "quantile"]
    assert results["seeds"] == [0, 1]
    assert [(run["arm"], run["seed"]) for run in results["runs"]] == [
        ("full", 0),
        ("infobatch", 0),
        ("quantile", 0),
        ("full", 1),
        ("infobatch", 1),
    ]
    assert [verdict["arm"] for verdict in results["verdicts"]] == ["infobatch", "quantile"]
    page = write_report(out).read_text()
    assert all(arm in page for arm in results["arms"])
    shutil.copytree(out / "runs" / "full-0", out / "runs" / "full-0-backup")
    assert len(compare(out, "full", 1)["runs"]) == 5, "a copy is no run"


def test_short_costs_what_one_leader_did_in_all_of_a_folder(tmp_path):
    results = compare(tmp_path, "full,quantile,short", 2)
    leaders = {run["arm"]: run["settings"]["leader"] for run in results["runs"]}
    assert leaders == {"full": None, "quantile": None, "short": "quantile"}
    for arms in ("full,quantile,short,infobatch", "infobatch"):
        with pytest.raises(ValueError, match="leader = 'quantile' there, 'infobatch' here") as told:
            compare(tmp_path, arms, 3)
        assert "short, seed 0; short, seed 1" in str(told.value)
        assert not (tmp_path / "runs" / "infobatch-0").exists(), "nothing was trained for nothing"
    for seed in (0, 1):
        shutil.rmtree(tmp_path / "runs" / f"short-{seed}")
    runs = compare(tmp_path, "full,quantile,short,infobatch", 2)["runs"]
    by_name = {(run["arm"], run["seed"]): run for run in runs}
    for seed in (0, 1):
        cost = by_name["infobatch", seed]["costs"]["samples_forwarded"]
        assert by_name["short", seed]["settings"]["budget"] == cost


def test_followers_need_their_leader_among_the_arms(finished):
    with pytest.raises(
        ValueError, match=r"there is infobatch, whose cost short must have\. Add it"
    ):
        Comparison(str(TINY), parse_arms("full,quantile,short"), 2, finished)


@pytest.mark.parametrize("name", ["results.json", "runs/full-0/result.json"])
def test_a_damaged_file_is_named_with_what_to_do(finished, tmp_path, name):
    out = shutil.copytree(finished, tmp_path / "out")
    whole = (out / name).read_text()
    (out / name).write_text(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"is damaged and cannot be read.*Delete") as caught:
        compare(out, "full,infobatch", 2)
    assert str(out / name) in str(caught.value)
    if name == "results.json":
        (out / name).unlink()
    else:
        shutil.rmtree((out / name).parent)
    compare(out, "full,infobatch", 2)
    assert len(read_results(out)["runs"]) == 4
