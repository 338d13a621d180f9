"""The files in .github: what actionlint, which needs a download, would not know of this project.

`pre-commit run actionlint` and CI run actionlint itself.
"""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").iterdir())}


def read(name):
    return yaml.safe_load(WORKFLOWS[name].read_text())


def steps_of(workflow):
    for job in workflow["jobs"].values():
        yield from job["steps"]


def test_the_core_is_tested_everywhere_as_the_matrix_tests_it():
    job = read("tests")["jobs"]["core"]
    matrix = job["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    tested = runpy.run_path(str(ROOT / "benchmarks/matrix.py"))
    versions = [pair["python"] for pair in matrix["versions"]]
    assert versions == [supported[0], supported[-1]]
    assert versions == [tested["PAIRS"][0][0], tested["PAIRS"][-1][0]]
    oldest = re.search(r'"torch>=([\d.]+),', (ROOT / "pyproject.toml").read_text())[1]
    assert [pair["torch"] for pair in matrix["versions"]] == [f"torch=={oldest}.0", "torch"]
    *_, command = (step["run"] for step in job["steps"] if "run" in step)
    assert re.findall(r"tests/(\S+)", command) == tested["TESTS"]


def test_the_commands_of_the_makefile_are_there():
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    commands = " ".join(step.get("run", "") for step in steps_of(read("tests")))
    called = re.findall(r"make (\S+)", commands)
    assert called
    assert set(called) <= set(targets)


def test_publishing_needs_no_secret():
    workflow = read("publish")
    assert "secrets." not in WORKFLOWS["publish"].read_text()
    job = workflow["jobs"]["publish"]
    assert job["permissions"] == {"id-token": "write"}
    assert "password" not in str(job["steps"])
    assert job["environment"]["name"] == "pypi"
    assert job["needs"] == "build"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_little_and_its_actions_are_pinned(name):
    workflow = read(name)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    pins = re.findall(r"uses: (\S+)@(\w+) (.*)", WORKFLOWS[name].read_text())
    for action, commit, comment in pins:
        assert re.fullmatch(r"# v\d+\.\d+\.\d+", comment), f"{action}@{commit}"


def test_an_action_has_one_version():
    text = "".join(path.read_text() for path in WORKFLOWS.values())
    pins = dict.fromkeys(re.findall(r"uses: (\S+)@(\w+)", text))
    assert len({action for action, _ in pins}) == len(pins)


def test_issue_forms():
    for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text())
        if path.stem != "config":
            assert form["name"]
            assert form["description"]
            assert all(field["attributes"]["label"] for field in form["body"])
    yaml.safe_load((GITHUB / "dependabot.yml").read_text())
