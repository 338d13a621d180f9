"""The report of a real comparison: what is on the page, that it stands alone, and what it survives."""

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from infobatch.lab.details import Details, read_details
from infobatch.lab.pictures import data_uri
from infobatch.lab.report import write_report
from infobatch.lab.results import run_folder

SECTIONS = ["verdict", "cost", "pruning", "losses", "visits", "samples", "classes", "curves"]
SECTIONS += ["settings"]
EVIL = "<script>alert('x')</script> $x_1 & \"q\" $"


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)

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


def change(out, edit):
    path = out / "results.json"
    results = json.loads(path.read_text())
    edit(results)
    path.write_text(json.dumps(results))


def rewrite_details(out, edit):
    for path in out.glob("runs/*/details.npz"):
        with np.load(path) as stored:
            arrays = dict(stored)
        edit(arrays)
        np.savez(path, **arrays)


def test_everything_is_there_in_order(comparison, page):
    sections = [value for value in page.all("aria-labelledby") if value in SECTIONS]
    assert sections == SECTIONS
    labels = page.all("aria-label")
    for start in (
        "Difference of each arm to full",
        "accuracy of each arm against sample passes",
        "accuracy of each arm against seconds",
        "kept share of the data by epoch",
        "threshold (score) by epoch",
        "Distribution of scores for infobatch",
        "How often samples were visited",
        "The share of each class",
        "accuracy by epoch",
        "accuracy by sample passes",
        "training loss by epoch",
        "training loss by sample passes",
    ):
        assert sum(label.startswith(start) for label in labels) == 1, start
    assert page.tags.count("svg") == page.tags.count("figcaption") == 12
    assert page.tags.count("img") == 24, "twelve of the easiest, twelve of the hardest"
    assert re.search(
        r"Lossless|worse by [\d.]+|not enough seeds to tell: about \d+ more", page.text
    )
    assert "A smoke run" in page.text
    assert "infobatch compare fashion --arms full,short,infobatch --seeds 2 --smoke" in page.text
    assert "Unfinished" not in page.text
    assert not list(comparison.glob(".*")), "written under another name, then renamed"


def test_costs_are_those_of_the_runs(comparison, page):
    runs = [
        json.loads(path.read_text()) for path in comparison.glob("runs/infobatch-*/result.json")
    ]
    passes = np.mean([run["costs"]["samples_forwarded"] for run in runs])
    memory = np.mean([run["costs"]["peak_memory_mb"] for run in runs])
    metric = np.mean([run["metric"] for run in runs])
    row = page.text[page.text.index("peak memory, MB") : page.text.index("What was pruned")]
    for told in (f"{passes:,.0f}", f"{memory:,.0f}", f"{metric:.2f}"):
        assert told in row


def table(page, label):
    """The words of a table's rows."""
    (found,) = re.findall(f'aria-label="{label}">(.*?)</div>', page.source, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    return [[cell.strip() for cell in re.findall(r">([^<]*)</t[hd]>", row)] for row in rows]


def test_further_metrics(out, page):
    assert "Further metrics" not in page.all("aria-label"), "this task has none"

    def edit(results):
        for run in results["runs"]:
            seed = run["seed"]
            run["extra_metrics"] = {"frechet_distance": 12.0 + seed, "<b>": None if seed else 1.5}
            if run["arm"] == "short":
                run["extra_metrics"] = {}

    change(out, edit)
    assert table(Page(write_report(out)), "Further metrics") == [
        ["arm", "frechet distance", "&lt;b&gt;"],
        ["full", "12.5 ± 0.71", "1.5"],
        ["short", "–", "–"],
        ["infobatch", "12.5 ± 0.71", "1.5"],
    ]


def test_the_scores_of_a_sweep(out, page):
    assert "Learning rates" not in page.all("aria-label"), "there was none"
    change(out, lambda results: results.update(chosen_rates={"full": 0.1, "infobatch": 0.03}))
    for arm, rate, metric in (
        ("infobatch", 0.03, 80.123), ("full", 0.1, 81.0), ("full", 0.03, None), ("random", 1.0, 9.0)
    ):  # fmt: skip
        folder = run_folder(out, f"{arm}-{rate}", 0, kind="sweep")
        folder.mkdir(parents=True)
        record = {"arm": arm, "metric": metric, "settings": {"learning_rate": rate}}
        (folder / "result.json").write_text(json.dumps(record))
    run_folder(out, "full-0.5", 0, kind="sweep").mkdir()  # not finished
    assert table(Page(write_report(out)), "Learning rates") == [
        ["arm", "learning rate", "accuracy", "chosen"],
        ["full", "0.03", "–", ""],
        ["full", "0.1", "81.00", "chosen"],
        ["infobatch", "0.03", "80.12", "chosen"],
    ]


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
        results |= {"options": {EVIL: EVIL}, "versions": {EVIL: EVIL}}
        for run in results["runs"]:
            run["settings"]["learning_rate"] = EVIL

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
    assert "Unfinished: 3 of 6 runs" in page.text
    assert "not enough seeds to tell: about 4 more" in page.text
    assert "(one seed, no interval)" in page.text


def test_no_run_at_all(out):
    change(out, lambda results: results.update(runs=[]))
    page = Page(write_report(out))
    assert "Unfinished: 0 of 6 runs" in page.text
    assert "No run of it is finished" in page.text
    assert "svg" not in page.tags


def test_only_full(out):
    def edit(results):
        runs = [run for run in results["runs"] if run["arm"] == "full"]
        results |= {"arms": ["full"], "runs": runs}

    change(out, edit)
    text = Page(write_report(out)).text
    assert "There is no arm to judge beside full" in text
    assert "No run of an arm that prunes is finished" in text
    assert "No run has kept a picture of a pruned epoch" in text


def test_runs_without_their_folders(out):
    shutil.rmtree(out / "runs")
    text = Page(write_report(out)).text
    assert "No run has kept a picture of a pruned epoch" in text
    assert "No run of an arm that prunes has counted visits" in text
    assert "No run has left its samples’ scores" in text.replace("'", "’")
    assert "There are no classes to show" in text


def test_a_run_without_snapshot_labels_and_pictures(out):
    def edit(arrays):
        for name in ("labels", "snapshot_order"):
            arrays.pop(name, None)

    rewrite_details(out, edit)
    for path in out.glob("runs/*/samples.json"):
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()))))
    page = Page(write_report(out))
    assert "There are no classes to show" in page.text
    assert "No run has kept a picture" in page.text
    assert "This task has no show()" in re.sub(r"\s+", " ", page.text)
    assert "How often samples were visited, for each arm that prunes" in page.all("aria-label")


def test_metrics_and_losses_that_are_not_finite(out):
    def edit(results):
        for run in results["runs"]:
            if run["arm"] == "infobatch":
                run["metric"] = float("nan")
                for entry in run["history"]:
                    entry |= {"metric": None, "train_loss": float("inf")}

    change(out, edit)
    rewrite_details(
        out, lambda arrays: arrays.update(snapshot_scores=np.full(len(arrays["scores"]), np.nan))
    )
    text = Page(write_report(out)).text
    assert "worse by more than a number can say: no finite accuracy with seeds 0, 1" in text
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
    assert "Only the classes at both ends are shown" in page.text
    assert len(page.text) < 40_000, "long texts are cut"
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


def test_results_that_are_missing_or_no_comparison(tmp_path, out):
    with pytest.raises(ValueError, match=r"There is no .*results\.json. Expected the --out folder"):
        write_report(tmp_path)
    change(out, lambda results: results.pop("margin"))
    with pytest.raises(ValueError, match=r"lack margin. Expected the --out folder of `infobatch"):
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
