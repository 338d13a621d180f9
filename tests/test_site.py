"""The site: it builds without a warning, has all names and pages, and asks nobody for anything."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from browsers import chromium_path
from document_examples import examples

ROOT = Path(__file__).parent.parent
OUTPUT = Path(os.environ.get("INFOBATCH_TEST_OUTPUT", "test-output"))
# Pages that are worth a look after a change of the theme or the styles.
PICTURES = ["index.html", "usage.html", "how-it-works.html", "policies.html"]
PICTURES += ["policies/mean.html", "results/index.html", "api/index.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Not with --quiet: mkdocs would not count its warnings, and a dead link would pass.
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert run.returncode == 0, run.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = re.compile(r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*href="https?:')
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not loaded.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", sheet.read_text()), sheet


def test_every_public_name_is_in_the_reference(site):
    folders = ("api", "policies")
    paths = [path for folder in folders for path in sorted((site / folder).glob("*.html"))]
    pages = "".join(path.read_text() for path in paths)
    modules = {
        "infobatch": set(infobatch.__all__) - {"coresets", "scoring", "tracks"},
        "infobatch.policies": infobatch.policies.__all__,
        "infobatch.tracks": infobatch.tracks.__all__,
        "infobatch.scoring": infobatch.scoring.__all__,
        "infobatch.coresets": infobatch.coresets.__all__,
    }
    for module, names in modules.items():
        for name in names:
            anchors = (f'id="{module}.{name}"', f'id="{module}.{name}.{name}"')
            anchors += (f'id="infobatch.policies.{name}"',)
            assert any(anchor in pages for anchor in anchors), f"{module}.{name} is missing"


def test_every_policy_has_a_card(site):
    table = (site / "policies.html").read_text()
    for name, rule in infobatch.policies.POLICIES.items():
        card = (site / f"policies/{name}.html").read_text()
        assert f'id="infobatch.policies.{rule.__name__}"' in card
        assert f'href="policies/{name}.html"' in table
        for section in ("when-to-use-it", "when-not-to-use-it", "measured"):
            assert f'id="{section}"' in card, name
        assert "<table>" in card.partition('id="measured"')[2], name


def test_formulas_and_examples_are_pages(site):
    assert (site / "how-it-works.html").read_text().count("<math") >= 7
    assert "examples/lightning_fashion.html" in (site / "lightning.html").read_text()
    assert "parse_args" in (site / "examples/ddp.html").read_text()


def test_the_figures_are_what_the_script_draws(tmp_path):
    subprocess.run([sys.executable, ROOT / "benchmarks/explain.py", tmp_path], check=True)
    for name in ("draw.svg", "unbiased.svg", "epochs.svg"):
        drawn = (tmp_path / name).read_bytes()
        assert drawn == (ROOT / "docs/images" / name).read_bytes(), "Run `make results`."


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=site))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("phone", 400), ("desktop", 1280)])
def test_in_chromium(site, address, device, width, colours):
    """No page scrolls sideways or asks for another machine, and the search finds things."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the fast tests need no browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(playwright), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
        errors, requested = [], []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        OUTPUT.mkdir(parents=True, exist_ok=True)
        for path in sorted(site.rglob("*.html")):
            name = path.relative_to(site).as_posix()
            page.goto(address + name, wait_until="load")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if name in PICTURES:
                stem = name.replace("/", "-").removesuffix(".html")
                picture = f"site-{stem}-{device}-{colours}.png"
                page.screenshot(path=OUTPUT / picture, full_page=True)
        page.goto(address + "index.html", wait_until="load")
        page.keyboard.press("/")
        page.locator("input[name=query]").fill("virtual_step")
        page.locator(".md-search-result__link").first.wait_for(timeout=60_000)
        assert errors == []
        assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
        browser.close()


def surroundings(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    model = nn.Linear(5, 2)
    train_data = infobatch.InfoBatch(data, 8)
    return {
        "infobatch": infobatch,
        "torch": torch,
        "DataLoader": DataLoader,
        "data": data,
        "train_data": train_data,
        "loader": DataLoader(train_data, 64, sampler=train_data.sampler),
        "num_epochs": 8,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "checkpoint": tmp_path / "checkpoint.pt",
    }


def train(names, epochs):
    for _ in range(epochs):
        for x, y in names["loader"]:
            names["train_data"].update(names["criterion"](names["model"](x), y))


def test_start_page(tmp_path, capsys):
    script, with_index = examples("docs/index.md")
    names = {}
    exec(compile(script, "index.md", "exec"), names)
    assert re.match(r"Saved (1|2|3)\d\.\d% of 32,000 sample passes", capsys.readouterr().out)
    names = surroundings(tmp_path)
    exec(compile(with_index, "index.md", "exec"), names)
    assert names["pruner"].savings.made == 400


def test_schedules_page(tmp_path):
    names = surroundings(tmp_path)
    paced, computed = examples("docs/schedules.md")
    exec(compile(paced, "schedules.md", "exec"), names)
    assert names["scheduler"].last_epoch == 8 * 7
    assert names["train_data"].savings.saved > 100
    names = surroundings(tmp_path)
    train(names, 7)
    exec(compile(computed, "schedules.md", "exec"), names)
    assert names["train_data"].virtual_step(7) == 8 * 7
    assert 0 < names["group"]["lr"] < 0.001


def test_checkpoints_page(tmp_path):
    names = surroundings(tmp_path)
    save, resume, bitwise = examples("docs/checkpoints.md")
    train(names, 2)
    for _, (x, y) in zip(range(2), names["loader"], strict=False):
        names["train_data"].update(names["criterion"](names["model"](x), y))
    exec(compile(save, "checkpoints.md", "exec"), names)
    resumed = surroundings(tmp_path)
    exec(compile(resume, "checkpoints.md", "exec"), resumed)
    assert len(resumed["train_data"].savings.epochs) == 8
    exec(compile(bitwise, "checkpoints.md", "exec"), surroundings(tmp_path) | {"state": {}})


def test_migrating_page(tmp_path, capsys):
    names = surroundings(tmp_path)
    names["train_data"] = names["data"]
    for block in examples("docs/migrating.md"):
        exec(compile(block, "migrating.md", "exec"), names)
    assert int(capsys.readouterr().out) == names["train_data"].savings.saved > 100
    assert names["schedule"].total_steps == 8 * 7


def test_questions_page(tmp_path):
    names = surroundings(tmp_path)
    budget, logged, mixed, accumulated = examples("docs/faq.md")
    exec(compile(budget, "faq.md", "exec"), names)
    names["loader"] = DataLoader(names["train_data"], 64, sampler=names["train_data"].sampler)
    train(names, 8)
    assert names["train_data"].savings.fraction == pytest.approx(0.3, abs=0.01)

    names = surroundings(tmp_path)
    values = []
    exec(compile(logged, "faq.md", "exec"), names | {"log": values.append})
    assert len(values) == 7

    names = surroundings(tmp_path) | {"lam": 0.7}
    names["images"], names["targets"] = next(iter(names["loader"]))
    names["train_data"] = infobatch.Pruner(64, 2)
    next(iter(DataLoader(range(64), 64, sampler=names["train_data"].sampler)))
    exec(compile(mixed, "faq.md", "exec"), names)
    assert names["loss"].requires_grad

    names = surroundings(tmp_path)
    exec(compile(accumulated, "faq.md", "exec"), names)
    assert names["train_data"].savings.made == 400


def test_the_run_that_lost_is_quoted_as_it_was_stored():
    stored = json.loads((ROOT / "benchmarks/results/cifar10.json").read_text())
    page = " ".join((ROOT / "docs/when-it-does-not-help.md").read_text().split())
    full, pruned = stored["accuracy"]
    saved = stored["share_of_passes_saved"]
    assert f"reached {full:.1f}% on all data and {pruned:.1f}% pruned, at {saved:.1%} fewer" in page
