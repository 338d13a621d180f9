"""The report of a real comparison: what is on the page, that it stands alone, and what it survives."""

import base64
import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from infobatch.lab.files import to_json
from infobatch.lab.report.details import Details, read_details
from infobatch.lab.report.page import write_report
from infobatch.lab.report.pictures import data_uri
from infobatch.lab.stats.decision import Conclusions
from infobatch.lab.stats.rates import summarise_rates
from lab_runs import compare

SECTIONS = ["frontier", "verdict", "cost", "pruning", "losses", "visits", "samples", "classes"]
SECTIONS += ["curves", "runs", "settings"]
EVIL = "<script>alert('x')</script> $x_1 & \"q\" $"


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text()
        self.tags, self.attributes, self.codes = [], [], []
        self.feed(self.source)
        self.text = " ".join(" ".join(self.codes).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.codes.append(data)

    def all(self, name):
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def page(comparison):
    """The page of the comparison as it is."""
    assert write_report(comparison) == comparison / "report.html"
    return Page(comparison / "report.html")


@pytest.fixture
def out(comparison, tmp_path):
    """A copy of the comparison, to change."""
    return shutil.copytree(comparison, tmp_path / "comparison")


def stored(out):
    return json.loads((out / "results.json").read_text())


def change(out, edit):
    results = stored(out)
    edit(results)
    (out / "results.json").write_text(json.dumps(results))


def rewrite_details(out, edit):
    for path in out.glob("runs/*/details.npz"):
        with np.load(path) as stored:
            arrays = dict(stored)
        edit(arrays)
        np.savez(path, **arrays)


def test_everything_is_there_in_order(comparison, page):
    sections = [value for value in page.all("aria-labelledby") if value in SECTIONS]
    assert sections == SECTIONS
    links = [link for link in page.all("href") if link.startswith("#") and link[1:] in SECTIONS]
    assert links == [f"#{name}" for name in SECTIONS], "the contents list"
    labels = page.all("aria-label")
    for start in (
        "accuracy against sample passes: full at length 1 ",
        "accuracy against processor seconds of training: full at length 1 ",
        "Difference from full data, where the margin is 0.5: infobatch ",
        "kept share of the data by epoch: random ends at ",
        "threshold (score) by epoch: ",
        "Distribution of scores for infobatch: ",
        "Distribution of scores for random: ",
        "How often samples were visited: on average ",
        "The share of each class that one pruned epoch keeps: infobatch keeps the least of ",
        "accuracy by epoch: full ends at ",
        "accuracy by sample passes: ",
        "training loss by epoch: ",
        "training loss by sample passes: ",
        "Forecast saving at equal quality by epoch: ",
    ):
        assert sum(label.startswith(start) for label in labels) == 1, start
    assert page.tags.count("svg") == page.tags.count("figcaption") == 14
    assert page.tags.count("img") == 24, "twelve of the easiest, twelve of the hardest"
    results = stored(comparison)
    assert page.tags.index("h1") < page.tags.index("nav") < page.tags.index("svg")
    assert results["decision"]["sentence"].replace("`", "") in page.text.replace(" :", ":")
    assert results["gate"]["text"] in page.text
    assert results["level"] in page.text
    assert "A smoke run" in page.text
    assert "infobatch compare fashion --lengths 0.5,1 --seeds 2 --smoke" in page.text
    assert "Unfinished" not in page.text
    assert not list(comparison.glob(".*")), "written under another name, then renamed"


def test_the_figure_is_before_every_table(page):
    assert page.source.index("cost-samples_forwarded-") < page.source.index("<table")


def test_values_on_hover_need_no_script(page):
    assert "script" not in page.tags
    titles = re.findall(r"<g><title>([^<]*)</title>", page.source)
    assert any(
        re.match(r"full, length 0.5: \d+\.\d\d for \d+ sample passes", title) for title in titles
    )
    assert any("of the samples were visited" in title for title in titles)
    assert not re.search(r'id="[^"]*hover:', page.source)


def test_the_words_of_the_page_are_those_of_the_results(comparison, page):
    """The page concludes nothing: what results.json says of an arm is in its card and its row."""
    results = stored(comparison)
    rows = table(page, "Quality against cost")
    assert rows[0][-1] == "verdict"
    words = {(row[0].partition(" ")[0], row[1]): row[-1] for row in rows[1:]}
    for verdict in results["verdicts"]:
        assert words[verdict["arm"], f"{verdict['length']:g}"] == verdict["outcome"]["word"]
        if verdict["length"] == 1.0:
            assert verdict["outcome"]["text"] in page.text
    savings = {point["saving"]["text"] for point in results["frontier"]["points"]}
    assert savings <= {row[4] for row in rows}


def test_single_runs_as_csv(comparison, page):
    (address,) = [link for link in page.all("href") if link.startswith("data:text/csv")]
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(address.partition(",")[2]).decode())))
    runs = stored(comparison)["runs"]
    assert len(rows) == len(runs) == 12
    for row, run in zip(rows, runs, strict=True):
        assert (row["arm"], float(row["length"]), int(row["seed"])) == (
            run["arm"],
            run["length"],
            run["seed"],
        )
        assert float(row["metric"]) == run["metric"]
        assert int(row["samples_forwarded"]) == run["costs"]["samples_forwarded"]
    assert len(table(page, "Single runs")) == 13


def test_machine_date_and_the_test_sets_size(comparison, page):
    run = stored(comparison)["runs"][0]
    settings = page.text[page.text.index("Settings") :]
    assert run["hardware"]["processor"] in page.text
    assert f"threads {run['hardware']['threads']}" in page.text
    assert f"date {run['finished_at'][:10]}" in page.text
    assert "total time of all runs" in settings or "total time of all runs" in page.text
    assert "with 128 items, accuracy has a binomial standard error of" in page.text


def test_classes_have_names(page):
    assert re.search(
        r"No\. \d+ (sneaker|trouser|bag|dress|coat|sandal|shirt|pullover|ankle boot)", page.text
    )


def test_costs_are_those_of_the_runs(comparison, page):
    runs = [
        json.loads(path.read_text()) for path in comparison.glob("runs/infobatch-1-*/result.json")
    ]
    passes = np.mean([run["costs"]["samples_forwarded"] for run in runs])
    memory = np.mean([run["costs"]["peak_memory_mb"] for run in runs])
    (row,) = [row for row in table(page, "Costs") if row[:2] == ["infobatch", "1"]]
    assert row[3] == row[4] == f"{passes:,.0f}"
    computed = np.mean([run["costs"]["cpu_seconds"] for run in runs])
    assert row[7] == f"{computed:,.1f}"
    assert row[9] == f"{memory:,.0f}"
    assert "which hardly depends on what else the machine was doing" in page.text


def test_where_processor_time_is_not_known_the_clocks_is_drawn(out):
    change(out, lambda results: results.update(compared_seconds="seconds"))
    shown = Page(write_report(out))
    assert (
        "the wall-clock seconds of training, which depend on what else the machine was doing."
        in shown.text
    )
    assert any(title.startswith("accuracy against seconds of") for title in shown.all("aria-label"))


def table(page, label):
    """The words of a table's rows."""
    (table,) = re.findall(f'aria-label="{label}">(.*?)</div>', page.source, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [[cell.strip() for cell in re.findall(r">([^<]*)</t[hd]>", row)] for row in rows]


def test_further_metrics(out):
    def without(results):
        for run in results["runs"]:
            run["extra_metrics"] = {}

    change(out, without)
    assert "Further metrics" not in Page(write_report(out)).all("aria-label")

    def edit(results):
        for run in results["runs"]:
            seed = run["seed"]
            run["extra_metrics"] = {"frechet_distance": 12.0 + seed, "<b>": None if seed else 1.5}
            if run["arm"] == "random":
                run["extra_metrics"] = {}

    change(out, edit)
    assert table(Page(write_report(out)), "Further metrics") == [
        ["arm", "length", "frechet distance", "&lt;b&gt;"],
        ["full", "1", "12.5 ± 0.71", "1.5"],
        ["full", "0.5", "12.5 ± 0.71", "1.5"],
        ["random", "1", "–", "–"],
        ["random", "0.5", "–", "–"],
        ["infobatch", "1", "12.5 ± 0.71", "1.5"],
        ["infobatch", "0.5", "12.5 ± 0.71", "1.5"],
    ]


def test_the_learning_rates_that_were_tried(out, page):
    assert "rates" not in page.all("id"), "none were"
    metrics = {
        "full": {0.01: [70.0, 70.0], 0.03: [None, 80.0], 0.1: [81.0, 81.4]},
        "infobatch": {0.01: [70.0, 70.0], 0.03: [80.123, 80.5], 0.1: [80.4, 80.3]},
    }
    tried = [
        {
            "arm": arm, "learning_rate": rate, "seed": 100_000 + place, "metric": metric,
            "samples_forwarded": 90, "seconds": 1.0,
        }
        for arm, grid in metrics.items()
        for rate, values in grid.items()
        for place, metric in enumerate(values)
    ]  # fmt: skip
    rates = [
        to_json(rate)
        for arm, grid in metrics.items()
        for rate in summarise_rates(grid, arm=arm, higher_is_better=True, usual=0.03)
    ]
    cost = {"runs": 12, "samples_forwarded": 720, "share": 0.25, "seconds": 8.0}

    def edit(results):
        results |= {"learning_rates": [0.01, 0.03, 0.1], "rate_seeds": 2, "rates": rates}
        results |= {"chosen_rates": {"full": 0.1, "infobatch": 0.03}}
        results |= {"tried_rates": tried, "rate_cost": cost}

    change(out, edit)
    shown = Page(write_report(out))
    assert table(shown, "Learning rates") == [
        ["arm", "learning rate", "accuracy", "behind the best", "choice"],
        ["full", "0.01", "70.00 ± 0.00", "11.20 ± 0.20", ""],
        ["full", "0.03", "diverged", "–", ""],
        ["full", "0.1", "81.20 ± 0.28", "0.00", "chosen"],
        ["infobatch", "0.01", "70.00 ± 0.00", "10.35 ± 0.05", ""],
        ["infobatch", "0.03", "80.31 ± 0.27", "0.04 ± 0.24", "chosen"],
        ["infobatch", "0.1", "80.35 ± 0.07", "0.00", "as good"],
    ]
    assert "with 2 seeds outside the comparison: 12 runs, 25% of all sample passes." in shown.text
    label = (
        "accuracy on the validation split by learning rate: full takes 0.1, infobatch takes 0.03"
    )
    assert label in shown.all("aria-label")
    assert "infobatch, rate 0.03: 80.31 (80.12, 80.50), chosen" in shown.text, "every seed on hover"


def test_the_page_stands_alone(page):
    assert "script" not in page.tags
    links = page.all("src") + page.all("href") + page.all("xlink:href")
    assert all(link.startswith(("data:", "#")) for link in links)
    assert "@import" not in page.source
    assert not re.search(r"url\((?!#)", page.source)
    assert any("default-src 'none'" in (value or "") for value in page.all("content"))
    assert "width=device-width, initial-scale=1" in page.all("content")
    assert "en" in page.all("lang")
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", page.source)
    used += [link[1:] for link in links if link.startswith("#")]
    assert used
    assert set(used) <= set(ids)


def test_figures_follow_the_colour_scheme(page):
    drawings = "".join(re.findall(r"<svg.*?</svg>", page.source, re.DOTALL))
    assert "var(--ink)" in drawings
    assert "prefers-color-scheme: dark" in page.source
    fixed = set(re.findall(r"(?:fill|stroke): ?(#[0-9a-f]{6})", drawings))
    assert not fixed, "a colour of its own is unreadable in one of the schemes"


def test_user_text_is_escaped(out):
    def edit(results):
        results |= {"task": EVIL, "metric": EVIL, "command": EVIL}
        results |= {"options": {EVIL: EVIL}, "versions": {EVIL: EVIL}, "class_names": []}
        results["decision"]["sentence"] = f"`{EVIL}`"
        for run in results["runs"]:
            run["settings"]["learning_rate"] = EVIL
            run["hardware"]["processor"] = EVIL

    change(out, edit)
    rewrite_details(
        out, lambda arrays: arrays.update(labels=np.array([EVIL] * len(arrays["visits"])))
    )
    for path in out.glob("runs/*/samples.json"):
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), EVIL)))
    page = Page(write_report(out))
    assert "script" not in page.tags
    assert "<script" not in page.source.lower()
    assert page.tags.count("blockquote") == 24
    assert page.text.count("<script>alert('x')</script>") > 30


def test_unfinished(out):
    change(out, lambda results: results.update(runs=results["runs"][:3]))
    page = Page(write_report(out))
    assert "Unfinished: 3 of 12 runs are finished" in page.text


def test_every_arm_is_missing_until_it_is_trained_for_longer(out):
    """Six runs for 1.5 × the epochs, two of them of full data."""

    def edit(results):
        results["lengths"].append(1.5)
        results["runs"] += [{**run, "length": 1.5} for run in results["runs"] if run["length"] == 1]

    change(out, edit)
    assert len(stored(out)["runs"]) == 18
    assert "Unfinished" not in Page(write_report(out)).text
    change(out, lambda results: results["runs"].pop())
    assert "Unfinished: 17 of 18 runs are finished" in Page(write_report(out)).text


def test_seconds_of_different_machines_are_not_drawn(out, page):
    assert "of the time" in page.text

    def edit(results):
        results["runs"][0]["hardware"].update(processor="Another")
        results.update(compared_seconds=None, frontier_by_seconds=None)

    change(out, edit)
    mixed = Page(write_report(out))
    assert "by-seconds" in page.all("id")
    assert "by-seconds" not in mixed.all("id")
    labels = mixed.all("aria-label")
    assert any(label.startswith("accuracy against sample passes") for label in labels)
    assert not any(label.startswith("accuracy against processor seconds") for label in labels)
    assert "of the time" not in mixed.text
    assert "Runs of the same seed were made on different machines (Another (" in mixed.text


def test_a_page_without_a_grid_says_that_rates_were_not_tuned(page):
    assert "Every arm was trained with the task's learning rate, 0.2, which may suit" in page.text


def test_no_run_at_all(out):
    change(out, lambda results: results.update(runs=[], **to_json(Conclusions())))
    page = Page(write_report(out))
    assert "Unfinished: 0 of 12 runs" in page.text
    assert "Not decided: no run on all data is finished yet." in page.text
    assert "svg" not in page.tags
    assert [name for name in page.all("id") if name in SECTIONS] == ["settings"]


def test_sections_without_content_are_left_out(out):
    def edit(results):
        runs = [run for run in results["runs"] if run["arm"] == "full"]
        results |= {"arms": ["full"], "runs": runs, "verdicts": []}
        results["frontier"]["points"] = results["frontier"]["reaches"] = []

    change(out, edit)
    page = Page(write_report(out))
    sections = [name for name in page.all("id") if name in SECTIONS]
    assert sections == ["frontier", "cost", "samples", "curves", "runs", "settings"]
    shutil.rmtree(out / "runs")
    sections = [name for name in Page(write_report(out)).all("id") if name in SECTIONS]
    assert sections == ["frontier", "cost", "curves", "runs", "settings"]


def test_a_run_without_snapshot_labels_and_pictures(out):
    def edit(arrays):
        for name in ("labels", "snapshot_order"):
            arrays.pop(name, None)

    rewrite_details(out, edit)
    for path in out.glob("runs/*/samples.json"):
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()))))
    page = Page(write_report(out))
    assert not {"classes", "losses"} & set(page.all("id"))
    assert "This task has no show()" in re.sub(r"\s+", " ", page.text)
    assert any(title.startswith("How often samples") for title in page.all("aria-label") if title)


def test_metrics_and_losses_that_are_not_finite(out):
    for path in out.glob("runs/infobatch-*/result.json"):
        run = json.loads(path.read_text())
        run["metric"] = None
        for entry in run["history"]:
            entry |= {"metric": None, "train_loss": None}
        path.write_text(json.dumps(run))
    compare(out, "full,random,infobatch", 2, "fashion", lengths=(0.5, 1.0), smoke=True)
    rewrite_details(
        out, lambda arrays: arrays.update(snapshot_scores=np.full(len(arrays["scores"]), np.nan))
    )
    text = Page(write_report(out)).text
    assert "Diverged with seeds 0, 1" in text
    assert "(2 diverged)" in text


def test_odd_but_sound_input(out):
    def edit(arrays):
        arrays["labels"] = np.arange(len(arrays["visits"])) // 2
        arrays["snapshot_scores"] = np.zeros(len(arrays["scores"]))

    change(out, lambda results: results.update(higher_is_better=False, metric="loss"))
    rewrite_details(out, edit)
    for path in out.glob("runs/*/samples.json"):
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), "word " * 1000)))
    page = Page(write_report(out))
    assert "lower is better" in page.text
    assert "Down is better, left is cheaper" in page.text
    assert "an arm is worth using only if it lies below that line" in page.text
    assert "Only the classes at both ends are shown" in page.text
    assert len(page.text) < 60_000, "long texts are cut"
    assert any(label.startswith("Distribution of scores") for label in page.all("aria-label"))


@pytest.mark.parametrize("damage", [None, b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_damaged_files_count_as_missing(tmp_path, damage):
    if damage is not None:
        (tmp_path / "details.npz").write_bytes(damage)
        (tmp_path / "samples.json").write_bytes(damage)
    assert read_details(tmp_path, arm="infobatch", seed=3) == Details("infobatch", 3)


def test_labels_that_are_no_classes(tmp_path):
    np.savez(tmp_path / "details.npz", visits=np.ones(4), labels=np.zeros((4, 3)))
    assert read_details(tmp_path, arm="infobatch", seed=0).labels is None
    np.savez(tmp_path / "details.npz", visits=np.ones(4), labels=np.zeros(5))
    assert read_details(tmp_path, arm="infobatch", seed=0).labels is None


def test_results_that_are_missing_or_damaged(tmp_path, out):
    """Whatever is wrong with the file, the error names the place and the remedy."""
    with pytest.raises(ValueError, match=r"There is no .*results\.json. Expected the --out folder"):
        write_report(tmp_path)
    whole = stored(out)

    def lack(results):
        del results["margin"], results["seeds"]

    def word(results):
        results["verdicts"][1]["outcome"]["word"] = "good"

    def number(results):
        results["frontier"]["points"][0]["to_full"]["mean"] = "0.1"

    for damage, message in (
        (lack, r"the file lacks margin, seeds"),
        (word, r"verdicts\[1\]\.word is 'good', expected 'lossless' or 'worse than"),
        (number, r"frontier\.points\[0\]\.to_full\.mean is '0\.1', expected float"),
        (lambda results: results.update(arms="full"), r"arms is 'full', expected a list"),
        (lambda results: results.update(gate=[]), r"gate is \[\], expected an object"),
        (lambda results: results.update(verdicts=None), r"verdicts is None, expected a list"),
        (lambda results: results["runs"][2].pop("costs"), r"runs\[2\] lacks costs"),
        (lambda results: results["runs"][0].update(seed=True), r"runs\[0\]\.seed is True, expect"),
        (lambda results: results["runs"][0].update(metric=float("nan")), r"NaN is not JSON"),
    ):
        change(out, damage)
        with pytest.raises(ValueError, match=rf"results\.json is damaged .*\({message}.*Delete it"):
            write_report(out)
        (out / "results.json").write_text(json.dumps(whole))
    change(out, lambda results: results.update(schema=1))
    with pytest.raises(ValueError, match=r"has schema 1, this infobatch reads 2\. Use the version"):
        write_report(out)
    (out / "results.json").write_text("[]")
    with pytest.raises(ValueError, match=r"has schema None, this infobatch reads 2"):
        write_report(out)


def pixels(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_pictures():
    grey = np.arange(0, 240, 10).reshape(4, 6)
    assert (pixels(data_uri(grey)) == grey).all()
    assert (pixels(data_uri(grey.tolist())) == grey).all()
    assert (pixels(data_uri(grey[None])) == grey).all()
    colours = np.stack([grey, grey + 5, grey + 9], axis=2)
    assert (pixels(data_uri(colours)) == colours).all()
    assert (pixels(data_uri(np.moveaxis(colours, 2, 0))) == colours).all()
    assert (pixels(data_uri(grey / 255)) == grey).all()
    stretched = pixels(data_uri(grey / 100 - 1.0))
    assert (stretched.min(), stretched.max()) == (0, 255)
    assert max(pixels(data_uri(np.zeros((600, 900)))).shape) == 256
    assert (pixels(data_uri(np.full((2, 2), -3.0))) == 0).all()
    assert (pixels(data_uri([[0.0, float("nan")], [1.0, 0.5]])) == [[0, 0], [255, 128]]).all()
    for no_picture in ([], [1, 2], [[1, 2], [3]], {"a": 1}, np.zeros((2, 2, 2, 2)), "text"):
        assert data_uri(no_picture) is None
