"""Forecasts in the lab: from the record of a run, beside what was measured; and the names of arms."""

import importlib
import json
import math
import sys
from dataclasses import replace

import pytest

from document_examples import ROOT
from infobatch.forecast import ERROR
from infobatch.lab.compare.results import labelled, read_results
from infobatch.lab.files import from_json, to_json
from infobatch.lab.stats.forecasts import forecast_note, forecast_of
from infobatch.lab.stats.runs import Record, label_of
from infobatch.savings import EpochPasses

NOISE = "noise:tau=0.2:delta=1.0"
sys.path.append(str(ROOT / "benchmarks" / "evidence"))


@pytest.fixture(scope="module")
def demo():
    return read_results(ROOT / "benchmarks" / "results" / "demo")


def followed(results):
    """The first run on all data, as if it had followed an arm."""
    epochs = tuple(
        EpochPasses(epoch, 100, 60, 60, 0, added_noise=0.2, realised_noise=0.25)
        for epoch in range(8)
    )
    first = next(run for run in results.runs if run.arm == "full")
    return replace(first, shadows={NOISE: epochs})


def test_the_forecast_of_a_record_survives_its_file(demo):
    record = followed(demo)
    again = from_json(Record, json.loads(json.dumps(to_json(record))))
    assert again.shadows == record.shadows
    forecast = forecast_of([demo.runs[0], again])
    assert list(forecast.rules) == ["auto"]
    assert forecast.rules["auto"].saving == pytest.approx(0.25)


def test_the_forecast_beside_what_was_measured(demo):
    frontier = demo.conclusions.frontier
    note = forecast_note([followed(demo)], frontier)
    assert note == (
        f"Forecast of the saving at equal quality, from one run on all data, ± {100 * ERROR:.0f} points: auto "
        "25% (measured: 28% (21–32%))."
    )
    assert forecast_note([followed(demo)], None).endswith("points: auto 25%.")
    assert forecast_note(demo.runs, frontier) == "", "no run followed anything"
    few = followed(demo)
    few = replace(few, shadows={arm: epochs[:5] for arm, epochs in few.shadows.items()})
    assert forecast_note([few], frontier) == (
        "No forecast of the saving at equal quality for 5 epochs: with so few, the number of steps matters "
        "more than noise."
    )


def test_no_table_or_sentence_has_the_old_name(demo):
    shown = labelled(demo)
    assert "auto" in shown.settings.arms
    assert NOISE not in json.dumps(to_json(shown))
    assert {run.metric for run in shown.runs} == {run.metric for run in demo.runs}
    assert label_of(f"{NOISE}:shrink=batch") == "auto:shrink=batch"
    assert labelled(shown) is shown
    both = replace(demo, settings=replace(demo.settings, arms=("full", "auto", NOISE)))
    assert labelled(both) is both, "two arms would have one name"


def test_what_the_forecast_promises_is_what_was_measured():
    """Wherever the sentence would have named a rule to use, its ± holds; over all rows on average."""
    forecasts = importlib.import_module("forecasts")
    rows = forecasts.rows()
    named = [row for row in forecasts.advised(rows) if row.rule.saving > ERROR]
    assert {row.study for row in named} >= {"demo", "frontier-cifar10", "frontier-covertype"}
    assert max(abs(row.error) for row in named) <= ERROR
    assert sum(row.error > 0 for row in named) > len(named) / 2, "rather less than more"
    promised = forecasts.promised_for(rows)
    agreement = forecasts.Agreement.of(promised)
    assert 0.07 < agreement.error <= ERROR
    errors = [row.rule.saving - row.measured for row in promised if row.measured is not None]
    assert agreement.error == pytest.approx(math.sqrt(sum(e * e for e in errors) / len(errors)))


def test_forecasts_stand_beside_the_savings_that_the_pages_show():
    """Those of an arm's lengths together; a bound is not a measured saving."""
    forecasts, tables = map(importlib.import_module, ("forecasts", "tables"))
    measured = {(row.study, row.arm): row.measured for row in forecasts.rows()}
    for study in ("demo", "frontier-diffusion"):
        results = labelled(read_results(ROOT / "benchmarks" / "results" / study))
        for row in tables.arm_savings(results):
            if (study, row.arm) in measured:
                expected = None if row.pooled.bound else row.pooled.estimate
                assert measured[study, row.arm] == pytest.approx(expected)
    assert measured["demo", "quantile"] == pytest.approx(0.08, abs=0.005), "not 14%, of two lengths"
    assert measured["frontier-diffusion", "quantile"] is None


def test_forecasts_are_the_law_by_hand():
    forecasts = importlib.import_module("forecasts")
    by_hand = [
        1 - sum(kept * (1 + realised) for kept, _, realised in epochs) / len(epochs)
        for run in forecasts.stored_runs().values()
        for epochs in run["shadow"].values()
        if any(realised for _, _, realised in epochs)
    ]
    assert [row.rule.saving for row in forecasts.rows()] == pytest.approx(by_hand, abs=1e-3)


def test_every_file_of_shadow_runs_is_on_the_page():
    forecasts = importlib.import_module("forecasts")
    stored = {path.stem for path in (forecasts.STORED / "forecast").glob("*.json")}
    assert stored == set(forecasts.TASKS)
