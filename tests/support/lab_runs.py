"""The runs of a comparison, made in this process: a child takes seconds to import torch."""

import json

import typer
from typer.testing import CliRunner

from infobatch.lab.compare.comparison import Comparison
from infobatch.lab.run.arms import parse_arms
from infobatch.lab.run.process import main

run_app = typer.Typer()
run_app.command()(main)


def make(job):
    """Make one run as its command line says."""
    arguments = [part for part in job.command()[3:] if part != "--events"]
    made = CliRunner().invoke(run_app, arguments)
    assert made.exit_code == 0, made.output


def compare(out, arms, seeds, task, **options):
    """Ask for a comparison, make the runs that are missing, and return what results.json holds."""
    comparison = Comparison(str(task), parse_arms(arms), seeds, out, **options)
    for job in comparison.jobs():
        if job.result is None:
            make(job)
    comparison.collect()
    return json.loads((out / "results.json").read_text())
