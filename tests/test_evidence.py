"""Studies: stored as they are made, and continued from what is stored."""

import importlib
import inspect
import json
import math
import runpy
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import infobatch
from document_examples import ROOT
from infobatch.lab.cli import DEMO_LENGTHS, DEMO_SEEDS
from infobatch.lab.compare.results import read_results
from infobatch.lab.stats.curve import Saving
from infobatch.lab.stats.decision import conclude
from infobatch.lab.stats.frontier import frontier
from infobatch.lab.stats.pairing import Measurement, PairedRuns
from infobatch.lab.stats.runs import Question

EVIDENCE = ROOT / "benchmarks" / "evidence"
STORED = ROOT / "benchmarks" / "results"
# A study in the size of a smoke run, in a folder of its own.
TINY = f"""
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(EVIDENCE)!r})
import run, studies
class Tiny(studies.Study):
    def commands(self, out):
        return [[*command, "--smoke"] for command in super().commands(out)]
study = Tiny("tiny", "a title", "a claim", "fashion", "full,infobatch", 1, learning_rates="0.1,0.2")
run.STUDIES = (study,)
run.study_of = lambda name: study
run.OUTPUT, run.STORED = Path("output"), Path("stored")
run.main()
"""


def make(folder, *arguments):
    command = [sys.executable, "-c", TINY, *arguments, "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_study_continues_from_what_is_stored(tmp_path):
    assert make(tmp_path).split() == ["tiny", "0", "runs", "finished", "of", "2"]
    make(tmp_path, "tiny")
    stored = (tmp_path / "stored/tiny/results.json").read_text()
    results = json.loads(stored)
    assert results["command"] == "python benchmarks/evidence/run.py tiny"
    assert [len(run["history"]) for run in results["runs"]] == [3, 3], "of the first seed"
    assert len(json.loads((tmp_path / "stored/tiny/grid.json").read_text())) == 4
    shutil.rmtree(tmp_path / "output")  # another machine
    output = make(tmp_path, "tiny")
    assert "runs/full" not in output, "finished runs are not repeated"
    assert (tmp_path / "stored/tiny/results.json").read_text() == stored
    assert make(tmp_path).split()[1] == "2"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    return importlib.import_module("tables")


@pytest.mark.parametrize(
    "folder",
    sorted(path.parent for path in STORED.glob("*/results.json")),
    ids=lambda folder: folder.name,
)
def test_the_conclusions_are_those_of_the_stored_runs(folder):
    """Every stored comparison is read, and the lab of today concludes the same from its runs."""
    results = read_results(folder)
    settings = results.settings
    rates = {arm: f"learning rate {rate:g}" for arm, rate in settings.chosen_rates.items()}
    question = Question(
        settings.margin,
        settings.higher_is_better,
        settings.unit,
        settings.epochs,
        rates,
        settings.most_seeds,
    )
    conclusions = conclude(results.runs, question)
    assert conclusions.decision == results.conclusions.decision
    assert conclusions.level == results.conclusions.level
    for verdict, stored in zip(conclusions.verdicts, results.conclusions.verdicts, strict=True):
        assert (verdict.arm, verdict.length, verdict.text) == (
            stored.arm,
            stored.length,
            stored.text,
        )
        assert (verdict.word, verdict.earlier) == (stored.word, stored.earlier)
    points = zip(conclusions.frontier.points, results.conclusions.frontier.points, strict=True)
    for point, stored in points:
        assert point.seeds == stored.seeds
        assert point.saving.text == stored.saving.text


def test_subsets_are_compared_with_random_ones_of_their_size(tables):
    """A row per method and ensemble, a column per share; below random in the mean is named."""
    metrics = {
        "coreset:random@0.7": (80.0, 82.0),
        "coreset:el2n@0.7:networks=20": (79.0, 82.0),
        "coreset:k_center@0.7": (83.0, 81.0),
        "coreset:random@0.3": (70.0, 72.0),
        "coreset:el2n@0.3:networks=20": (75.0, 76.0),
    }
    demo = read_results(STORED / "demo")
    full = next(run for run in demo.runs if run.arm == "full" and run.length == 1)
    runs = tuple(
        replace(full, arm=arm, seed=seed, metric=metric)
        for arm, of_seeds in metrics.items()
        for seed, metric in enumerate(of_seeds)
    )
    results = replace(demo, settings=replace(demo.settings, arms=tuple(metrics)), runs=runs)
    assert tables.coreset_table(results) == [
        "| chosen before training | 70% of the data | 30% of the data | passes saved | below random |",
        "|---|---|---|---|---|",
        "| `random` | 81.00 ± 1.41 | 71.00 ± 1.41 | 0%, 0% | – |",
        "| `el2n, 20 networks` | 80.50 ± 2.12 | 75.50 ± 0.71 | 0%, 0% | 70% |",
        "| `k_center` | 82.00 ± 1.41 | – | 0% | – |",
    ]


@pytest.fixture
def stored(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    return importlib.import_module("stored")


def test_savings_of_every_arm_from_its_lengths_together_and_against_all_data(tables, stored):
    rows = {row.arm: row for row in tables.arm_savings(stored.stored_results("frontier-covertype"))}
    noise = rows["noise:tau=0.2:delta=1.0"]
    assert (noise.seeds, noise.pooled_text) == (5, "29% (25–33%)")
    longer = "31% fewer passes, +0.10 points (−0.01 to +0.22)"
    assert noise.against_full == longer, "for 1.4 × the epochs, where it is as good"
    longest = "17% fewer passes, −0.06 points (−0.28 to +0.16)"
    assert rows["quantile"].against_full == longest, "it is nowhere as good"
    alpaca = tables.arm_savings(stored.shown_results("few-epochs-alpaca"))
    auto = next(row.against_full for row in alpaca if row.arm == "auto")
    assert auto.startswith("11% fewer passes, −0.012 nats"), "worse: the loss is higher"


def measured(arm, qualities, *, cost=1.0):
    """Qualities by length and seed, at a cost in proportion to the length."""
    return [
        Measurement(arm, length, seed, cost * length, quality)
        for length, of_seeds in qualities.items()
        for seed, quality in enumerate(of_seeds)
    ]


@pytest.mark.parametrize(
    ("qualities", "words"),
    [
        ({0.6: [86, 88], 1.0: [90.5, 91], 1.4: [95, 96]}, "30% fewer passes, +0.75 points (−2.43 to +3.93)"),
        ({0.6: [86, 88], 1.0: [88, 91], 1.8: [91, 92]}, "26% more passes, +1.50 points (−4.85 to +7.85)"),
        ({0.6: [86], 1.0: [89]}, "30% fewer passes, −1.00 points"),
        ({0.6: [86, 88], 1.0: [89, math.nan]}, "diverged"),
    ],
    ids=["the shortest that is as good", "more passes", "one seed", "diverged"],
)  # fmt: skip
def test_what_it_takes_to_be_as_good_as_all_data(tables, qualities, words):
    """Also where a lower metric is better: then its sign is turned."""
    full = measured("full", {0.4: [80, 81], 0.6: [85, 86], 1.0: [90, 90]})
    seeds = range(max(map(len, qualities.values())))
    runs = [run for run in full if run.seed in seeds] + measured("arm", qualities, cost=0.7)
    demo = read_results(STORED / "demo")
    for sign in (1, -1):
        signed = [replace(run, quality=sign * run.quality) for run in runs]
        rows = frontier(PairedRuns(signed, higher_is_better=sign > 0))
        conclusions = replace(demo.conclusions, frontier=rows)
        arms = tables.arm_savings(replace(demo, conclusions=conclusions))
        assert [row.against_full for row in arms] == [words]


def test_rows_without_an_interval_do_not_stand_beside_rows_with_one(tables, stored):
    names = ("frontier-covertype", "frontier-camvid")
    rows = [(name, f"docs/{name}.md", stored.shown_results(name)) for name in names]
    lines = tables.rules_table(rows)
    assert [line.partition("]")[0] for line in lines[2:]] == ["| [frontier-covertype"]
    assert lines[2].endswith("| 29% (25–33%) |")
    assert tables.regimes_table(rows)[2:] == [
        "| **most samples learned before its end** | [frontier-covertype](docs/frontier-covertype.md), "
        "40 epochs, 5 seeds | 29% (25–33%) | 31% fewer passes, +0.10 points (−0.01 to +0.22) |"
    ]


def arms_shown(tables, stored, *names):
    """The arms in the index's table of savings, with what they save."""
    rows = [(name, f"{name}.md", stored.shown_results(name)) for name in names]
    return [tuple(line.split(" | ")[1:4]) for line in tables.savings_table(rows)[2:]]


def test_an_arm_is_shown_under_the_first_study_that_has_its_runs(tables, stored):
    auto, measured_gradients = (
        ("`auto`", "5", "2% (−1% to 6%)"),
        ("`auto:probe=3`", "5", "3% (−2% to 6%)"),
    )
    assert arms_shown(tables, stored, "wide-cifar10", "probe-cifar10") == [auto, measured_gradients]
    assert arms_shown(tables, stored, "probe-cifar10", "wide-cifar10") == [auto, measured_gradients]
    fewer = arms_shown(tables, stored, "between-fashion", "fresh-fashion")
    assert [seeds for arm, seeds, _ in fewer if arm == "`auto`"] == ["5", "10"], "not all are there"


def test_arms_with_fewer_seeds_than_all_data_are_not_shown_beside_the_others(
    tables, stored, monkeypatch
):
    """They are named as not trained yet. Neither do lengths count that only some seeds have been trained for."""
    monkeypatch.syspath_prepend(EVIDENCE)
    pages = importlib.import_module("pages")
    demo = stored.shown_results("demo")
    runs = [
        run
        for run in demo.runs
        if run.arm != "quantile" or run.seed == 0
        if (run.arm, run.length) != ("auto", 1.4) or run.seed < 3
    ]
    conclusions = conclude(runs, stored.question_of(demo))
    results = replace(demo, runs=tuple(runs), conclusions=conclusions)
    assert tables.unfinished(results) == {"quantile": 1}
    rows = {row.arm: row.against_full for row in tables.arm_savings(results)}
    assert list(rows) == ["infobatch", "auto", "random"]
    assert rows["auto"] == "42% fewer passes, −0.38 points (−0.60 to −0.16)", "not 1.4 × the epochs"
    lines = [*tables.arms_table(results), *tables.table(results, every_length=True)]
    assert not any("quantile" in line for line in lines)
    assert tables.how_it_was_made(results).startswith("3 to 10 seeds")
    sentence = pages.not_yet(pages.DEMO, results)
    assert (
        sentence == " Stated, but not trained yet (length): `quantile` (1 of 10 seeds, not shown)."
    )
    without = replace(demo, runs=tuple(run for run in demo.runs if run.length < 1.4))
    assert " `full` at 1.4;" in pages.not_yet(pages.DEMO, without)
    assert not tables.unfinished(demo)


def test_an_interval_may_be_open_on_a_side(tables, stored):
    best = ("`epsilon_greedy:save=0.4:delta=1.0`", "5", "34% (24% or more)")
    assert best in arms_shown(tables, stored, "between-fashion")
    assert arms_shown(tables, stored, "frontier-camvid") == [], "three seeds that differ too much"
    saving = Saving(-0.22, None, None, 0.28, 0.95)
    assert not tables.ArmSavings("auto", 2, saving, "").has_interval, (
        "two pairs can agree by chance"
    )


def test_the_index_has_no_savings_of_superseded_and_short_studies(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    pages = importlib.import_module("pages")
    shown = {page for _, page, _ in pages.judged_curves("")}
    left_out = {page for _, page, _ in pages.curves("")} - shown
    names = (
        "frontier-cifar10 frontier-camvid frontier-diffusion frontier-mae probe-camvid probe-mae"
    )
    assert left_out == {f"{name}.md" for name in names.split()}
    for page in left_out:
        text = (ROOT / "docs/results" / page).read_text()
        assert "(wide-cifar10.md)" in text or "#very-short-training)" in text, page


def test_runs_that_studies_share_are_found(stored):
    """The same arm, length, seed and settings, in whichever study and on whichever machine it was made."""
    shared = stored.shared_runs("demo", ["demo", "biased-fashion", "table4-cifar10"])
    biased = stored.stored_results("biased-fashion").runs
    arms = ("full", "noise:tau=0.2:delta=1.0")
    assert list(shared) == ["biased-fashion"]
    assert [run for _, run in shared["biased-fashion"]] == [
        run for run in biased if run.arm in arms
    ]
    assert stored.largest_difference(shared["biased-fashion"]) == (0, 0.0)
    first, second = biased[:2]
    again = replace(first, finished_at="later", metric=first.metric - 0.25)
    assert stored.identity(first) == stored.identity(again)
    assert stored.identity(first) != stored.identity(second)
    diverged = replace(first, metric=None)
    pairs = [(first, first), (first, again), (first, diverged)]
    assert stored.largest_difference(pairs) == (1, 0.25)


def test_how_learning_rates_were_chosen(tables, stored):
    one_rate = tables.how_it_was_made(stored.shown_results("sizes-cifar10"))
    assert one_rate.endswith("a margin of 0.5 points; learning rate 0.2 for every arm.")
    narrow = tables.how_it_was_made(stored.shown_results("frontier-cifar10"))
    assert narrow.endswith(
        "each arm's learning rate from 0.1, 0.2, 0.4 by validation splits; an end of that grid was best for `full` 0.1, "
        "`infobatch` 0.1, `quantile` 0.4, `random` 0.1."
    )
    for page in ("wide-cifar10", "probe-cifar10"):
        text = (ROOT / f"docs/results/{page}.md").read_text()
        assert "four of five arms had a learning rate at an end of the grid" in text


def test_the_page_of_the_demo_says_what_the_command_makes():
    page = " ".join((ROOT / "docs/results/demo.md").read_text().split())
    lengths = DEMO_LENGTHS.replace(",", ", ").replace(", 1", " and 1")
    assert f"`auto` only, at the lengths {lengths} and with four seeds." in page
    assert DEMO_SEEDS == 4


def test_a_page_says_by_how_much_repeated_runs_differ():
    """A run that two other studies have, too, is one run."""
    page = (STORED.parents[1] / "docs/results/between-fashion.md").read_text()
    assert (
        "these runs include 60 of [Images that no search has seen: ten disjoint sets of Fashion-MNIST](fresh-fashion.md), "
    ) in page
    assert (
        "Of these, 6 that were made again on another machine differ, by up to 1.13 points." in page
    )


def test_coverage_is_simulated_with_the_noise_of_stored_comparisons(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    script = runpy.run_path(str(EVIDENCE / "coverage.py"))
    metrics = {
        (run.arm, run.length, run.seed): run.metric for run in read_results(STORED / "demo").runs
    }
    deviations = [
        statistics.stdev(
            metrics[arm, length, seed] - metrics["full", 1.0, seed] for seed in range(10)
        )
        for arm, length in {(arm, length) for arm, length, _ in metrics}
        if arm != "full" and 0.6 <= length <= 1
    ]
    by_hand = math.sqrt(statistics.fmean(value**2 for value in deviations))
    assert script["noise_of"]("demo") == pytest.approx(by_hand)
    rows = json.loads((STORED / "coverage.json").read_text())["rows"]
    for name in ("demo", "fresh-fashion", "between-fashion"):
        simulated = [row["noise"] for row in rows if row["truth"].endswith(f"as noisy as `{name}`")]
        assert simulated == pytest.approx([script["noise_of"](name)] * 6, abs=0.01)


def test_screens_are_placed_on_the_curve_of_all_data(monkeypatch, tmp_path):
    """All data loses 0.1 of loss from cost 1 to 0.5; a rule that loses nothing at half the cost saves half."""
    monkeypatch.syspath_prepend(EVIDENCE)
    screens = importlib.import_module("screens")
    cells = {("full", 1.0): (1.0, 0.3), ("full", 0.5): (0.5, 0.4), ("mean", 1.0): (0.5, 0.3)}
    cells["random", 1.0] = (0.5, 0.4)
    runs = [
        {
            "arm": arm,
            "length": length,
            "learning_rate": 0.1,
            "seed": seed,
            "cost": cost,
            "cross-entropy": loss + seed / 1000,
            "metric": 100 * (1 - loss),
        }
        for (arm, length), (cost, loss) in cells.items()
        for seed in range(3)
    ]
    screen = tmp_path / "screen.json"
    screen.write_text(json.dumps({"runs": runs}))
    lines = screens.screen_tables(screen)
    assert lines[0] == "2 variants were tried, in 12 runs with those on all data."
    rows = [line for line in lines if line.startswith("| `")]
    assert rows[0].startswith("| `mean` | 3 | 50% | +0.0000 | +0.00 | ")
    assert rows[0].endswith("| 50% (50% or more) |")
    assert rows[1].startswith("| `random` | 3 | 50% | +0.1000 | −10.00 | ")
    assert "| 0%" in rows[1]


@pytest.mark.parametrize(
    ("study", "cell"),
    [
        ("fresh-fashion", "−5% (4% or less), at the cost of `auto`"),
        ("frontier-covertype", "−9% (−14% to −5%), at the cost of `infobatch`"),
        ("wide-cifar10", "–"),
    ],
)
def test_random_pruning_is_shown_at_the_cost_of_a_rule(tables, stored, study, cell):
    """Not the arm with an amount of its own that happens to come first."""
    assert tables.saving_cell("random", stored.shown_results(study)) == cell


def test_what_random_pruning_saves_is_quoted_from_the_stored_runs(tables, stored):
    page = " ".join((ROOT / "docs/when-it-does-not-help.md").read_text().split())
    sentences = {
        ("demo", "random"): "{} on [Fashion-MNIST](results/demo.md)",
        ("fresh-fashion", "random:delta=1.0"): "{} on [other images](results/fresh-fashion.md)",
        ("frontier-covertype", "random"): "{} on [Covertype](results/frontier-covertype.md)",
        ("fresh-fashion", "random:delta=1.0:shrink=batch"): "{} on the other images.",
        ("few-epochs-alpaca", "random"): "it saved {}, the mean rule",
    }
    for (study, arm), sentence in sentences.items():
        rows = {row.arm: row for row in tables.arm_savings(stored.shown_results(study))}
        assert sentence.format(rows[arm].pooled_text) in page


@pytest.fixture
def draws(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE.parent)
    return importlib.import_module("draw_rules")


def weights_by_epoch(policy, *, epochs=200):
    """The weight of each of 30 samples in each epoch after the first, 0 if it was left out."""
    scores = torch.linspace(0, 1, 30) ** 2
    pruner = infobatch.Pruner(len(scores), epochs, policy=policy, delta=1.0)
    weights = torch.zeros(epochs, len(scores))
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        order = torch.tensor(list(pruner.sampler))
        weights[epoch, order] = pruner.plan.weights.float()
        pruner.update(scores[order])
    return weights[1:]


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_independent_draws_keep_the_expected_weight_and_not_its_sum(draws):
    for policy in (draws.IndependentMean(), draws.IndependentNoise(tau=0.5)):
        weights = weights_by_epoch(policy)
        assert (weights == 0).any(0).sum() > 10
        # A weight is at most 4, so its variance is at most 3: five standard errors of the mean.
        assert weights.mean(0) == pytest.approx(torch.ones(30), abs=5 * (3 / 199) ** 0.5)
        assert len(weights.sum(1).unique()) > 5


def test_rotating_draws_leave_no_sample_out_for_long(draws):
    with pytest.warns(infobatch.policies.BiasedPolicyWarning):
        weights = weights_by_epoch(draws.RotatingMean())
    left_out = weights == 0
    assert left_out.any(0).sum() == 17, "those below the mean"
    assert (left_out.sum(1) == 9).all()
    assert weights.sum(1) == pytest.approx(torch.full((199,), 30.0))
    # Of 9 that were left out, 8 are kept next, and the last one comes first after that.
    assert not (left_out[:-2] & left_out[1:-1] & left_out[2:]).any()


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
@pytest.mark.parametrize("name", ["screen_rules", "draw_rules", "bias_rules"])
def test_every_rule_of_the_studies_can_be_trained_with(name, monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE.parent)
    module = importlib.import_module(name)
    rules = [
        rule
        for rule in vars(module).values()
        if inspect.isclass(rule) and rule.__module__ == name
        if issubclass(rule, infobatch.Policy) and not inspect.isabstract(rule)
    ]
    assert rules
    for rule in rules:
        weights = weights_by_epoch(rule(), epochs=4)
        assert torch.isfinite(weights).all(), rule


@pytest.fixture
def between(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE.parent)
    return importlib.import_module("bias_rules")


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_a_bias_fades(between):
    """Weights are 1 in the first epoch and those of the noise budget in the last, between them in between."""
    weights = weights_by_epoch(between.FadingBias(tau=0.5), epochs=201)
    unbiased = weights_by_epoch(between.AutoPrune(tau=0.5), epochs=201)
    assert torch.equal(weights == 0, unbiased == 0), "the same samples are kept"
    kept = unbiased > 0
    power = torch.arange(1, 201)[:, None] / 200
    expected = torch.where(kept, unbiased**power, torch.zeros(()))
    assert weights == pytest.approx(expected, rel=0.05)
    assert weights[0].max() < 1.05
    assert torch.equal(weights[-1], unbiased[-1])
    assert unbiased.max() == 1.5, "30 samples are one stratum"
    constant = weights_by_epoch(between.FadingBias(tau=0.5, end=0.0), epochs=20)
    assert set(constant.unique().tolist()) == {0.0, 1.0}


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_greedy_first_and_unbiased_later(between):
    weights = weights_by_epoch(between.GreedyThenAuto(tau=0.5), epochs=20)
    assert set(weights[:9].unique().tolist()) == {0.0, 1.0}
    assert (weights[:9] > 0).sum(1).tolist() == [19] * 9, "40% are left out, in whole samples"
    assert weights[9:].max() == 1.5
    assert weights[9:].sum(1) == pytest.approx(torch.full((10,), 30.0), rel=1e-3)


def test_an_upper_bound_keeps_what_varies_more_often(between):
    generator = torch.Generator().manual_seed(0)
    pruner = infobatch.Pruner(64, 100, policy=between.UpperBoundAuto(tau=0.5))
    visits = torch.zeros(64)
    for epoch in range(100):
        pruner.set_epoch(epoch)
        order = torch.tensor(list(pruner.sampler))
        visits[order] += 1
        noise = torch.rand(64, generator=generator) < 0.5
        scores = torch.where(noise, 0.1, 1.3)  # of the first half; on average 0.7
        scores[32:] = 0.7
        pruner.update(scores[order])
    assert visits[:32].mean() > 1.1 * visits[32:].mean()


def test_a_follow_up_takes_the_runs_that_it_shares(monkeypatch, tmp_path):
    """Those of the same arm, length and seed, and their grids; not those of other arms."""
    monkeypatch.syspath_prepend(EVIDENCE)
    run, studies = importlib.import_module("run"), importlib.import_module("studies")
    settings = ("new", "a title", "a claim", "fashion", "full,quantile,ucb", 2, "0.4,1")
    run.restore(studies.Study(*settings, reuses="demo"), tmp_path / "no grid")
    assert not (tmp_path / "no grid/sweep").exists(), "at the rates that it names itself"
    run.restore(studies.Study(*settings, studies.DEMO.learning_rates, reuses="demo"), tmp_path)
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == {
        f"{arm}-{length}-{seed}"
        for arm in ("full", "quantile")
        for length in ("0.4", "1")
        for seed in (0, 1)
    }
    stored = json.loads((ROOT / "benchmarks/results/demo/grid.json").read_text())
    assert len(list((tmp_path / "sweep").iterdir())) == sum(
        run["arm"] in ("full", "quantile") for run in stored
    )
    assert not (tmp_path / "results.json").exists(), "it has none of its own yet"
