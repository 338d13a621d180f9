"""Studies: stored as they are made, and continued from what is stored."""

import json
import shutil
import subprocess
import sys

import pytest

from document_examples import ROOT

EVIDENCE = ROOT / "benchmarks" / "evidence"
# A study in the size of a smoke run, in a folder of its own.
TINY = f"""
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(EVIDENCE)!r})
import run, studies
class Tiny(studies.Study):
    def command(self, out):
        return [*super().command(out), "--smoke"]
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
    said = make(tmp_path, "tiny")
    assert "runs/full" not in said, "finished runs are not repeated"
    assert (tmp_path / "stored/tiny/results.json").read_text() == stored
    assert make(tmp_path).split()[1] == "2"
