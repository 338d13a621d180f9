"""The studies: which runs each asks for, and that no page recommends a rule that is not in the package."""

import importlib

import pytest

from document_examples import ROOT

PAGES = ROOT / "docs" / "results"
TRIED = ("between-fashion", "between-wrong-labels")


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "evidence")


def module(name):
    return importlib.import_module(name)


def test_no_page_recommends_a_rule_that_is_not_in_the_package():
    for page in PAGES.glob("*.md"):
        for line in page.read_text().splitlines():
            advice = line.removeprefix("> ").rpartition(".md) | ")[2]
            assert not (advice.startswith("Use `") and ".py:" in advice.split("`")[1]), page
    stored, differences = module("stored"), module("differences")
    names = [study.name for study in module("studies").STUDIES if stored.is_stored(study.name)]
    tried = [name for name in names if differences.tries_rules(stored.shown_results(name))]
    assert tried == [*TRIED]


@pytest.mark.parametrize("name", TRIED)
def test_every_rule_has_a_row_beside_auto(name):
    differences, results = module("differences"), module("stored").shown_results(name)
    page = (PAGES / f"{name}.md").read_text()
    assert f"> {differences.finding(results)}" in page
    assert "\n".join(differences.differences_table(results)) in page
    arms = [arm for arm in results.settings.arms if arm not in ("full", "auto")]
    assert [row.arm for row in differences.differences(results)] == arms


def test_rules_that_differ_are_named():
    words = module("differences").finding(module("stored").shown_results("between-wrong-labels"))
    assert words.endswith(
        "these of 6 save more at equal quality: none; and these less: `epsilon_greedy:save=0.4:delta=1.0`, −7.1 points "
        "(−11.6 to −2.0), `FadingBias:end=0.0`, −11.6 points (−22.5 to −1.0)."
    )


def test_controls_are_trained_alone_unless_one_follows_another_arm():
    """All data and auto are trained at the controls' lengths only where a control has to match their cost."""

    def second(name):
        study = module("studies").study_of(name)
        _, command = study.commands("out")
        return study, dict(zip(command[2::2], command[3::2], strict=False))

    study, options = second("within-airbench")
    assert options["--arms"] == study.controls
    assert options["--lengths"] == "0.6,1,1.4"
    study, options = second("frontier-airbench")
    assert options["--arms"] == f"{study.arms},{study.controls}"
