"""What a comparison's folder holds: runs of one making, all of them, at equal cost."""

import json
import shutil
from pathlib import Path

import pytest

import lab_runs
from infobatch.lab.compare import rates
from infobatch.lab.compare.answer import added_seeds, grid_note
from infobatch.lab.compare.comparison import Comparison
from infobatch.lab.compare.results import Results, read_results
from infobatch.lab.report.page import write_report
from infobatch.lab.run.arms import parse_arms
from infobatch.lab.run.data import data_of
from infobatch.lab.run.process import run_once
from infobatch.lab.run.result import read_result
from infobatch.lab.run.settings import settings_of
from infobatch.lab.stats.decision import Conclusions, Decision
from infobatch.lab.stats.intervals import SeedRange
from infobatch.lab.task import load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"


def compare(out, arms, seeds, task=TINY, **options):
    return lab_runs.compare(out, arms, seeds, task, **options)


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
    ("old", "new", "message"),
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
def test_an_edited_task_raises_with_what_differs(finished, tmp_path, old, new, message):
    task = edited(tmp_path / "another", old, new)
    with pytest.raises(ValueError, match="Choose another --out, or delete") as caught:
        Comparison(str(task), parse_arms("full,infobatch"), 3, finished)
    assert message in str(caught.value)
    assert str(finished) in str(caught.value)


def test_the_same_text_from_elsewhere_continues(finished, tmp_path):
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
    with pytest.raises(AssertionError, match="expected one loss"):
        compare(out, "full", 1, task=broken)
    shutil.copy(TINY, broken)
    assert len(compare(out, "full", 1, task=broken)["runs"]) == 1


def test_a_file_that_is_edited_while_its_comparison_runs(tmp_path):
    task = shutil.copy(TINY, tmp_path)
    comparison = Comparison(str(task), parse_arms("full"), 2, tmp_path / "out")
    edited(tmp_path, "epochs = 4", "epochs = 5")
    (job, *_) = comparison.jobs()
    lab_runs.make(job)
    assert job.result.settings["epochs"] == 5
    with pytest.raises(ValueError, match=r"full, seed 0 .*epochs = 5 there, 4 here"):
        comparison.collect()


def test_a_sweep_of_another_text_is_not_taken_over(tmp_path):
    run_once(
        str(TINY), tmp_path / "sweep" / "full-0.1-100000", arm="full", seed=100_000, data=None, smoke=False,
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
    assert results["decision"]["kind"] == "not decided"
    page = write_report(out).read_text()
    assert all(arm in page for arm in results["arms"])
    shutil.copytree(out / "runs" / "full-1-0", out / "runs" / "full-1-0-backup")
    assert len(compare(out, "full", 1)["runs"]) == 5, "a copy is no run"


def test_short_costs_what_one_leader_did_in_all_of_a_folder(tmp_path):
    results = compare(tmp_path, "full,quantile,short", 2)
    leaders = {run["arm"]: run["settings"]["leader"] for run in results["runs"]}
    assert leaders == {"full": None, "quantile": None, "short": "quantile"}
    for arms in ("full,quantile,short,infobatch", "infobatch"):
        with pytest.raises(
            ValueError, match="leader = 'quantile' there, 'infobatch' here"
        ) as error:
            compare(tmp_path, arms, 3)
        assert "short, seed 0; short, seed 1" in str(error.value)
        assert not (tmp_path / "runs" / "infobatch-1-0").exists(), "nothing was trained for nothing"
    for seed in (0, 1):
        shutil.rmtree(tmp_path / "runs" / f"short-1-{seed}")
    runs = compare(tmp_path, "full,quantile,short,infobatch", 2)["runs"]
    by_name = {(run["arm"], run["seed"]): run for run in runs}
    for seed in (0, 1):
        cost = by_name["infobatch", seed]["costs"]["samples_forwarded"]
        assert by_name["short", seed]["settings"]["budget"] == cost


def test_followers_need_their_leader_among_the_arms(finished):
    with pytest.raises(
        ValueError, match=r"has runs of infobatch, whose cost short must match\. Add it"
    ):
        Comparison(str(TINY), parse_arms("full,quantile,short"), 2, finished)


@pytest.mark.parametrize("name", ["results.json", "runs/full-1-0/result.json"])
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
    assert len(read_results(out).runs) == 4


def test_results_have_a_line_for_each_run(finished):
    """With indented histories, ten seeds of four arms and lengths would be a hundred thousand lines."""
    lines = (finished / "results.json").read_text().splitlines()
    (first,) = [number for number, line in enumerate(lines) if line == ' "runs": [']
    assert [json.loads(line.rstrip(","))["arm"] for line in lines[first + 1 : -2]] == [
        run.arm for run in read_results(finished).runs
    ]
    assert lines[-2:] == [" ]", "}"]


# Lengths, learning rates, seeds.


def test_every_arm_is_trained_at_every_length(tmp_path):
    results = compare(tmp_path, "full,random,infobatch", 2, lengths=(0.5, 1.0))
    runs = {(run["arm"], run["length"], run["seed"]): run for run in results["runs"]}
    arms = ("full", "random", "infobatch")
    assert set(runs) == {(arm, n, seed) for arm in arms for n in (0.5, 1.0) for seed in (0, 1)}
    for seed in (0, 1):
        assert runs["full", 0.5, seed]["costs"]["samples_forwarded"] == 120, "two epochs of four"
        assert runs["full", 0.5, seed]["saved_fraction"] == 0.5
        for length in (0.5, 1.0):
            cost = runs["infobatch", length, seed]["costs"]["samples_forwarded"]
            assert runs["random", length, seed]["settings"]["budget"] == cost
    assert [knot["length"] for knot in results["frontier"]["curve"]] == [0.5, 1.0]
    cells = {(point["arm"], point["length"]) for point in results["frontier"]["points"]}
    assert cells == {(arm, n) for arm in ("random", "infobatch") for n in (0.5, 1.0)}


def test_every_arm_may_be_trained_for_more_than_all_epochs(tmp_path):
    results = compare(tmp_path, "full,random,infobatch", 2, lengths=(0.5, 1.0, 1.5))
    cells = {(run["arm"], run["length"]) for run in results["runs"]}
    assert cells == {(arm, n) for arm in ("full", "random", "infobatch") for n in (0.5, 1.0, 1.5)}
    longest = next(run for run in results["runs"] if run["length"] == 1.5)
    assert longest["full_passes"] == 240, "what is saved is saved of full data's four epochs"
    assert len(longest["history"]) == 6
    assert [knot["length"] for knot in results["frontier"]["curve"]] == [0.5, 1.0, 1.5]
    (reach,) = {row["full_cost"] for row in results["frontier"]["reaches"]}
    assert reach == pytest.approx(240), "an arm has to be as good as full data in four epochs"
    at_full_length = {row["arm"] for row in results["verdicts"] if row["length"] == 1.0}
    assert at_full_length == {"random", "infobatch"}


def test_lengths_are_added_to_those_of_the_folder(tmp_path):
    compare(tmp_path, "full,infobatch", 2, lengths=(0.5, 1.0))
    before = {path: path.read_bytes() for path in tmp_path.glob("runs/*/result.json")}
    results = compare(tmp_path, "full,infobatch", 2, lengths=(0.75, 1.0, 1.5))
    assert results["lengths"] == [0.5, 0.75, 1.0, 1.5]
    assert {path: path.read_bytes() for path in before} == before, "finished runs are not repeated"
    made = {(run["arm"], run["length"]) for run in results["runs"]}
    assert {("infobatch", 1.5), ("full", 1.5)} <= made


@pytest.mark.usefixtures("in_this_process")
def test_a_shorter_length_leaves_the_choice_of_the_rates_as_it_was(tmp_path):
    """In a folder of an earlier version, too, which did not store its length: it was the shortest."""
    made_with_rates(tmp_path, 1).collect()
    file = tmp_path / "results.json"
    assert json.loads(file.read_text())["rate_length"] == 0.5
    file.write_text(file.read_text().replace('"rate_length": 0.5,', ""))
    tried = {path: path.read_bytes() for path in tmp_path.glob("sweep/*/result.json")}
    results = made_with_rates(tmp_path, 1, lengths=(0.25, 1.0)).collect()
    assert results.settings.rate_length == 0.5
    assert {path: path.read_bytes() for path in tmp_path.glob("sweep/*/result.json")} == tried


@pytest.mark.usefixtures("in_this_process")
def test_the_length_at_which_rates_are_chosen(tmp_path):
    results = made_with_rates(tmp_path / "new", 1, rate_length=1.0).collect()
    assert results.settings.rate_length == 1
    tried = [read_result(path) for path in (tmp_path / "new/sweep").iterdir()]
    assert {run.length for run in tried} == {1.0}
    assert "on a validation split, at 1 × the epochs, with one seed" in grid_note(results)
    with pytest.raises(ValueError, match=r"rate_length = 1.0 there, 0.5 here"):
        made_with_rates(tmp_path / "new", 1, rate_length=0.5)
    (tmp_path / "new/results.json").unlink()
    with pytest.raises(
        ValueError, match=r"sweep holds runs whose settings differ.*length = 1.0 th"
    ):
        made_with_rates(tmp_path / "new", 1)
    with pytest.raises(ValueError, match=r"--rate-length got 1.5, expected a share of the epochs"):
        made_with_rates(tmp_path / "other", 1, rate_length=1.5)
    with pytest.raises(ValueError, match=r"--rate-length got 1 without --learning-rates, the grid"):
        made_with_rates(tmp_path / "other", 1, rate_length=1.0, learning_rates=())


def test_short_and_lengths_exclude_each_other(tmp_path):
    arms = parse_arms("full,infobatch,short")
    with pytest.raises(ValueError, match=r"got short together with several --lengths.*Leave short"):
        Comparison(str(TINY), arms, 2, tmp_path, lengths=(0.5, 1.0))


def test_without_full_it_says_what_is_missing(tmp_path):
    with pytest.raises(
        ValueError, match=r"--arms got infobatch without full.*--arms full,infobatch"
    ):
        Comparison(str(TINY), parse_arms("infobatch"), 2, tmp_path)


def made_with_rates(out, seeds, **options):
    """A comparison with a grid, its runs made in this process."""
    comparison = Comparison(
        str(TINY), parse_arms("full,infobatch,random"), seeds, out,
        **{"lengths": (0.5, 1.0), "learning_rates": [1e-9, 0.2], **options},
    )  # fmt: skip
    comparison.chosen_rates |= comparison.rate_search().choose(
        at_once=1, listen=lambda job, event: None
    )
    for job in comparison.jobs():
        if job.result is None:
            lab_runs.make(job)
    return comparison


@pytest.fixture
def in_this_process(monkeypatch):
    """The runs of a grid, without a process for each."""

    def run_jobs(jobs, *, at_once, listen):
        for job in jobs:
            if job.result is None:
                lab_runs.make(job)

    monkeypatch.setattr(rates, "run_jobs", run_jobs)


@pytest.mark.usefixtures("in_this_process")
def test_the_rates_are_tried_at_the_shortest_length_on_a_validation_split(tmp_path):
    comparison = made_with_rates(tmp_path, 1, rate_seeds=2)
    assert comparison.chosen_rates == {"full": 0.2, "infobatch": 0.2, "random": 0.2}
    results = comparison.collect()
    settings = results.settings
    assert len(settings.tried_rates) == 12
    assert {run.settings["learning_rate"] for run in results.runs} == {0.2}
    tried = [read_result(path) for path in (tmp_path / "sweep").iterdir()]
    assert {(run.length, run.num_samples, run.num_test) for run in tried} == {(0.5, 48, 12)}
    assert {run.seed for run in tried} == {100_000, 100_001}, "not those of the comparison"
    by_rate = {(run.arm, run.settings["learning_rate"], run.seed): run for run in tried}
    for seed in (100_000, 100_001):
        leader = by_rate["infobatch", 0.2, seed].costs.samples_forwarded
        assert by_rate["random", 1e-9, seed].settings["budget"] == leader
    assert "with learning rate 0.2" in results.conclusions.decision.sentence
    assert settings.rate_cost.runs == 12
    passes = sum(run.costs.samples_forwarded for run in tried)
    every = passes + sum(run.costs.samples_forwarded for run in results.runs)
    assert settings.rate_cost.share == pytest.approx(passes / every)
    assert [(row.arm, row.learning_rate, row.chosen) for row in settings.rates] == [
        (arm, rate, rate == 0.2) for arm in ("full", "infobatch", "random") for rate in (1e-9, 0.2)
    ]  # fmt: skip
    assert "on a validation split, at 0.5 × the epochs, with 2 seeds" in grid_note(results)
    assert "12 runs, " in grid_note(results)


def test_every_seed_of_the_choice_has_its_own_validation_split():
    task = load_task(str(TINY))

    def split(seed, arm):
        settings = settings_of(task, arm=arm, seed=seed, validation=True)
        return set(data_of(task, settings)[1].indices)

    assert split(100_000, "full") == split(100_000, "infobatch")
    assert split(100_000, "full") != split(100_001, "full")


@pytest.mark.usefixtures("in_this_process")
def test_how_many_seeds_choose_the_rates(tmp_path):
    def asked(seeds, out=tmp_path / "new", **options):
        arms = parse_arms("full,infobatch,random")
        options = {"lengths": (0.5, 1.0), "learning_rates": [1e-9, 0.2], **options}
        return Comparison(str(TINY), arms, seeds, out, **options)

    assert [asked(seeds).rate_seeds for seeds in (1, 2, 5)] == [1, 2, 3]
    assert asked(1, rate_seeds=4).rate_seeds == 4
    with pytest.raises(ValueError, match="--rate-seeds got 3 without --learning-rates, the grid"):
        asked(1, learning_rates=(), rate_seeds=3)
    out = tmp_path / "begun"
    made_with_rates(out, 1).collect()
    assert asked(5, out).rate_seeds == 1, "the choice was made, and more seeds are added to it"
    with pytest.raises(ValueError, match="rate_seeds = 1 there, 3 here"):
        asked(5, out, rate_seeds=3)


@pytest.mark.usefixtures("in_this_process")
def test_runs_with_another_rate_than_the_chosen_one_raise(tmp_path):
    comparison = made_with_rates(tmp_path, 1)
    comparison.collect()
    comparison.chosen_rates = {"full": 1e-9, "infobatch": 0.2, "random": 0.2}
    with pytest.raises(ValueError, match=r"full, seed 0.*learning_rate = 0.2 there, 1e-09 here"):
        comparison.collect()


def test_a_sequential_design_is_stated_first_and_kept(tmp_path):
    first = compare(tmp_path, "full,infobatch", 3, most_seeds=6)
    assert first["frontier"]["confidence"] > 0.95, "a stricter interval at each look"
    assert first["most_seeds"] == 6
    with pytest.raises(ValueError, match="most_seeds = 6 there, None here"):
        compare(tmp_path, "full,infobatch", 4)
    with pytest.raises(ValueError, match="--most-seeds got 2 with --seeds 3"):
        compare(tmp_path, "full,infobatch", 3, most_seeds=2)


def test_seeds_are_added_while_anything_is_open(tmp_path, monkeypatch):
    """Also where an arm is to be used instead of shorter training, and may be lossless or not."""
    more, instead = SeedRange(1, 2), "use instead of shorter training"
    decisions = [
        Decision("not decided", "", more_seeds=more),
        Decision(instead, "", more_seeds=more),
        Decision(instead, ""),
        Decision("use", ""),
    ]
    comparison = Comparison(str(TINY), parse_arms("full,infobatch"), 3, tmp_path, most_seeds=9)
    settings, remaining = comparison.settings, iter(decisions)
    monkeypatch.setattr("infobatch.lab.compare.comparison.run_jobs", lambda *_, **__: None)
    monkeypatch.setattr(
        comparison, "collect", lambda: Results(settings, Conclusions(next(remaining)), ())
    )
    results = comparison.run(at_once=1, watch=lambda *_: None)
    assert results.conclusions.decision == Decision(instead, "")
    assert comparison.seeds == 5


def test_seeds_that_were_added_after_a_look_are_owned_up_to(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    assert added_seeds(read_results(out)) == ""
    assert compare(out, "full,infobatch", 3)["stated_seeds"] == [2, 3]
    results = read_results(out)
    assert "Seeds were added after results were seen (2, then 3)." in added_seeds(results)
    assert "in 6–11% of comparisons instead of 2.5%" in added_seeds(results)
