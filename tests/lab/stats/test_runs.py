"""From the records of finished runs to everything that is concluded from them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from infobatch.lab.files import from_json, to_json
from infobatch.lab.stats.decision import Conclusions, conclude
from infobatch.lab.stats.pairing import measurements
from infobatch.lab.stats.runs import Costs, Question, Record, mean_and_deviation, summarise

QUESTION = Question(margin=0.5, higher_is_better=True, unit="points", epochs=20)


def record(arm, length, seed, metric, *, cost=None, seconds=1.0, cpu_seconds=None, leader=None):
    passes = int(1000 * length) if cost is None else cost
    costs = Costs(
        passes, passes, passes // 10, seconds, cpu_seconds, 0.1, 0.2, peak_memory_mb=300.0
    )
    return Record(
        arm=arm,
        length=length,
        seed=seed,
        settings={"leader": leader},
        metric=metric,
        costs=costs,
        num_samples=100,
        num_test=50,
        full_passes=1000,
        saved_fraction=1 - passes / 1000,
        history=(),
        versions={},
        hardware={"processor": "Fast", "threads": 2, "system": "Linux 7"},
        finished_at="2026-01-01T00:00:00+00:00",
    )


def a_frontier(seeds, *, pruned=-0.1, noise=0.05):
    """Full data whose half loses two points, and a rule that is nearly as good at 70% of the cost."""
    generator = np.random.default_rng(0)
    records = []
    for seed in range(seeds):
        for length, quality in ((0.5, 88.0), (0.75, 89.2), (1.0, 90.0)):
            records.append(record("full", length, seed, quality + noise * generator.normal()))
            metric = quality + pruned + noise * generator.normal()
            records.append(record("mean", length, seed, metric, cost=int(700 * length)))
    return records


def test_a_rule_that_is_as_good_for_less_is_to_be_used():
    conclusions = conclude(a_frontier(5), QUESTION)
    decision = conclusions.decision
    assert (decision.kind, decision.arm, decision.length) == ("use", "mean", 1.0)
    assert decision.sentence.startswith("Use `mean`: at equal quality it saves 28% of")
    assert conclusions.gate.regime == "can tell"
    assert [verdict.word for verdict in conclusions.verdicts][-1] == "lossless"
    (saving,) = [point.saving for point in conclusions.frontier.points if point.length == 1.0]
    assert 0.2 < saving.low < saving.estimate < saving.high < 0.35


def test_conclusions_survive_json_and_keep_the_texts():
    conclusions = conclude(a_frontier(5), QUESTION)
    stored = json.loads(json.dumps(to_json(conclusions), allow_nan=False))
    assert stored["frontier"]["points"][-1]["saving"]["text"].endswith("%)")
    assert from_json(Conclusions, stored) == conclusions


def test_time_is_that_of_the_processors_where_every_run_has_it():
    generator = np.random.default_rng(1)
    records = [
        replace(
            run,
            costs=replace(
                run.costs,
                seconds=generator.uniform(1, 9),
                cpu_seconds=run.costs.samples_forwarded / 10,
            ),
        )
        for run in a_frontier(3)
    ]
    conclusions = conclude(records, QUESTION)
    assert conclusions.compared_seconds == "cpu_seconds"
    costs = [knot.cost for knot in conclusions.frontier_by_seconds.curve]
    assert costs == pytest.approx([50, 75, 100])
    first = replace(records[0], costs=replace(records[0].costs, cpu_seconds=None))
    on_a_gpu = conclude([first, *records[1:]], QUESTION)
    assert on_a_gpu.compared_seconds == "seconds", "by the clock"


def test_times_of_different_machines_are_compared_only_where_each_seed_has_one_machine():
    def made_by(machine_of):
        records = [
            replace(run, hardware={"processor": machine_of(run), "threads": 1})
            for run in a_frontier(3)
        ]
        return conclude(records, QUESTION)

    same_for_a_seed = made_by(lambda run: f"machine {run.seed}")
    assert same_for_a_seed.compared_seconds == "seconds"
    assert same_for_a_seed.frontier_by_seconds is not None
    mixed = made_by(lambda run: f"machine {run.length}")
    assert (mixed.compared_seconds, mixed.frontier_by_seconds) == (None, None)


def test_without_a_run_on_all_data_nothing_is_concluded():
    assert conclude([], QUESTION) == Conclusions()
    assert conclude([record("mean", 1.0, 0, 90.0)], QUESTION) == Conclusions()


def test_random_pruning_is_shown_and_compared_with_but_never_recommended():
    records = a_frontier(5)
    records += [
        record("random", row.length, row.seed, row.metric + 0.3, cost=400, leader="mean")
        for row in records
        if row.arm == "mean"
    ]
    conclusions = conclude(records, QUESTION)
    assert conclusions.decision.arm == "mean"
    verdicts = {(verdict.arm, verdict.length): verdict for verdict in conclusions.verdicts}
    to_random = verdicts["mean", 1.0].to_random
    assert (to_random.count, to_random.mean) == (5, pytest.approx(-0.3))
    assert verdicts["mean", 1.0].random_leader == "mean"
    assert verdicts["random", 1.0].to_random is None
    assert verdicts["random", 1.0].word == "lossless"


def test_short_is_a_point_of_full_datas_curve():
    records = [record("full", 1.0, seed, 90.0 + seed / 10) for seed in range(3)]
    records += [
        record("short", 1.0, seed, 89.0, cost=cost, leader="mean")
        for seed, cost in enumerate((690, 700, 710))
    ]
    records += [record("mean", 1.0, seed, 90.0 + seed / 10, cost=700) for seed in range(3)]
    cells = {(row.arm, row.length) for row in measurements(records, cost="samples_forwarded")}
    assert cells == {("full", 1.0), ("full", 0.7), ("mean", 1.0)}
    conclusions = conclude(records, QUESTION)
    assert [verdict.arm for verdict in conclusions.verdicts] == ["mean"]
    (point,) = conclusions.frontier.points
    assert point.to_shorter.mean == pytest.approx(1.1, abs=0.01)


def test_lower_is_better():
    turned = [replace(row, metric=-row.metric) for row in a_frontier(5)]
    conclusions = conclude(turned, Question(margin=0.5, higher_is_better=False))
    assert conclusions.decision.kind == "use"
    assert conclusions.verdicts[-1].text.startswith("Lossless: ")


def test_a_machine_is_its_processor_and_threads():
    row = record("mean", 1.0, 0, 90.0, leader="infobatch")
    assert row.leader == "infobatch"
    of_a_model = {**row.hardware, "model": "model 2"}
    assert replace(row, hardware=of_a_model).machine == "Fast (model 2), 2 threads"
    on_a_gpu = {"processor": "Fast", "threads": 1, "gpu": "Faster"}
    assert replace(row, hardware=on_a_gpu).machine == "Faster, 1 thread"


def test_where_the_processors_model_is_unknown_the_system_tells_machines_apart():
    row = record("mean", 1.0, 0, 90.0)
    assert row.machine == "Fast (Linux 7), 2 threads"
    elsewhere = replace(row, hardware={**row.hardware, "model": "", "system": "Linux 8"})
    assert elsewhere.machine == "Fast (Linux 8), 2 threads"


def test_summary():
    records = [
        record("mean", 1.0, 0, 90.0, seconds=10.0, cost=100),
        record("mean", 1.0, 1, 92.0, seconds=14.0, cost=104),
        record("mean", 1.0, 2, None, seconds=12.0, cost=96),
        record("full", 0.5, 0, 89.0),
        record("full", 1.0, 0, 91.0),
    ]
    long, short, mean = summarise(records, arms=["full", "mean"])
    assert [(row.arm, row.length) for row in (long, short)] == [("full", 1.0), ("full", 0.5)]
    assert (mean.metric.mean, mean.diverged, mean.seeds) == (91.0, 1, (0, 1, 2))
    assert (mean.seconds, mean.samples_forwarded) == (12.0, 100.0)
    assert mean.cpu_seconds is None
    assert mean_and_deviation(mean.metric, 2) == "91.00 ± 1.41"
    assert mean_and_deviation(long.metric, 2) == "91.00"
    assert mean_and_deviation(None, 2) == "diverged"
