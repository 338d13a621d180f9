"""The one judge: typed records in, what results.json says of them out."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from infobatch.lab.stats.judgement import Earlier, Question, judge
from infobatch.lab.stats.records import Record, measurements, read_record
from infobatch.lab.stats.summary import mean_and_deviation, summarise

QUESTION = Question(margin=0.5, higher_is_better=True, unit="points", epochs=20)


def record(arm, length, seed, metric, *, cost=None, seconds=1.0, cpu_seconds=None, leader=None):
    passes = int(1000 * length) if cost is None else cost
    return Record(
        arm=arm,
        length=length,
        seed=seed,
        metric=metric,
        saved_fraction=1 - passes / 1000,
        samples_forwarded=passes,
        samples_backpropagated=passes,
        optimizer_steps=passes // 10,
        seconds=seconds,
        overhead_seconds=0.1,
        evaluation_seconds=0.2,
        peak_memory_mb=300.0,
        cpu_seconds=cpu_seconds,
        leader=leader,
    )


def a_frontier(seeds, *, pruned=-0.1, noise=0.05):
    """Full data whose half loses two points, and a rule that is nearly as good at 70% of the cost."""
    generator = np.random.default_rng(0)
    records = []
    for seed in range(seeds):
        for length, quality in ((0.5, 88.0), (0.75, 89.2), (1.0, 90.0)):
            records.append(record("full", length, seed, quality + noise * generator.normal()))
            records.append(
                record(
                    "mean",
                    length,
                    seed,
                    quality + pruned + noise * generator.normal(),
                    cost=int(700 * length),
                )
            )
    return records


def test_a_rule_that_is_as_good_for_less_is_to_be_used():
    judged = judge(a_frontier(5), QUESTION)
    decision = judged.assessment.decision
    assert (decision.kind, decision.arm, decision.length) == ("use", "mean", 1.0)
    assert decision.sentence.startswith("Use `mean`: as good as full data at 2")
    assert judged.assessment.gate.regime == "can tell"
    (saving,) = [p.saving for p in judged.assessment.frontier.points if p.length == 1.0]
    assert 0.2 < saving.low < saving.estimate < saving.high < 0.35


def test_what_is_stored_is_plain_json_with_the_texts():
    judged = judge(a_frontier(5), QUESTION)
    stored = json.loads(json.dumps(judged.as_dict(), allow_nan=False))
    assert stored["decision"]["sentence"] == judged.assessment.decision.sentence
    assert [verdict["length"] for verdict in stored["verdicts"]] == [0.5, 0.75, 1.0]
    assert stored["verdicts"][-1]["outcome"]["word"] == "lossless"
    assert stored["frontier"]["points"][-1]["saving"]["text"].endswith("%)")
    assert len(stored["frontier_by_seconds"]["curve"]) == 3


def test_time_is_that_of_the_processors_where_every_run_has_it():
    records = [
        replace(run, seconds=random, cpu_seconds=run.samples_forwarded / 10)
        for run, random in zip(
            a_frontier(3), np.random.default_rng(1).uniform(1, 9, 18), strict=True
        )
    ]
    judged = judge(records, QUESTION)
    assert judged.as_dict()["compared_seconds"] == "cpu_seconds"
    assert [knot.cost for knot in judged.by_seconds.curve] == pytest.approx([50, 75, 100])
    on_a_gpu = judge([*records[1:], replace(records[0], cpu_seconds=None)], QUESTION)
    assert on_a_gpu.seconds == "seconds", "by the clock"


def test_times_of_different_machines_are_compared_only_where_each_seed_has_one_machine():
    def made_by(machine_of):
        records = [replace(run, machine=machine_of(run)) for run in a_frontier(3)]
        return judge(records, QUESTION)

    paired = made_by(lambda run: f"machine {run.seed}")
    assert paired.seconds == "seconds"
    assert paired.as_dict()["frontier_by_seconds"] is not None
    mixed = made_by(lambda run: f"machine {run.length}")
    assert mixed.as_dict()["compared_seconds"] is None
    assert mixed.as_dict()["frontier_by_seconds"] is None


def test_without_a_run_on_all_data_nothing_is_judged():
    assert judge([], QUESTION) is None
    assert judge([record("mean", 1.0, 0, 90.0)], QUESTION) is None


def test_one_seed_says_what_one_seed_can_say():
    decision = judge(a_frontier(1), QUESTION).assessment.decision
    assert decision.kind == "not decided"
    assert decision.sentence.startswith("Not decided: there is one seed. On it, `mean` was ")


def test_a_chosen_learning_rate_is_in_the_sentence():
    question = Question(0.5, True, "points", 20, {"mean": "learning rate 0.2"})
    sentence = judge(a_frontier(5), question).assessment.decision.sentence
    assert sentence.startswith("Use `mean` with learning rate 0.2: ")


def test_an_arm_that_diverges_is_never_lossless():
    records = [row for row in a_frontier(4) if (row.arm, row.length, row.seed) != ("mean", 1.0, 2)]
    records.append(record("mean", 1.0, 2, None, cost=700))
    verdict = judge(records, QUESTION).verdicts[-1]
    assert verdict.outcome.word == "worse than the margin"
    assert "Diverged with seed 2" in verdict.outcome.text


def test_random_pruning_is_shown_and_compared_with_but_never_recommended():
    records = a_frontier(5)
    records += [
        record("random", row.length, row.seed, row.metric + 0.3, cost=400, leader="mean")
        for row in records
        if row.arm == "mean"
    ]
    judged = judge(records, QUESTION)
    assert judged.assessment.decision.arm == "mean"
    by_cell = {(verdict.arm, verdict.length): verdict for verdict in judged.verdicts}
    to_random = by_cell["mean", 1.0].to_random
    assert (to_random.count, to_random.mean) == (5, pytest.approx(-0.3))
    assert by_cell["mean", 1.0].random_leader == "mean"
    assert by_cell["random", 1.0].to_random is None
    assert by_cell["random", 1.0].outcome.word == "lossless"


def test_a_verdict_that_changed_as_seeds_were_added_says_so():
    full = [90.0] * 6
    metrics = [88.0, 89.9, 90.0, 89.95, 90.0, 90.05]  # one bad seed, then good ones
    records = [record("full", 1.0, seed, value) for seed, value in enumerate(full)]
    records += [record("mean", 1.0, seed, value, cost=700) for seed, value in enumerate(metrics)]
    (verdict,) = judge(records, QUESTION).verdicts
    assert verdict.outcome.word == "not decided"
    assert verdict.earlier == ()
    good = [90.0 - 0.001 * seed for seed in range(6)]
    bad_first = [record("mean", 1.0, seed, value, cost=700) for seed, value in enumerate(good)]
    bad_first[0] = record("mean", 1.0, 0, 89.45, cost=700)
    (verdict,) = judge(records[:6] + bad_first, QUESTION).verdicts
    assert verdict.outcome.word == "lossless"
    assert verdict.earlier == (Earlier(4, "not decided"),)


def test_short_is_a_point_of_full_datas_curve():
    records = [record("full", 1.0, seed, 90.0 + seed / 10) for seed in range(3)]
    records += [
        record("short", 1.0, seed, 89.0, cost=cost, leader="mean")
        for seed, cost in enumerate((690, 700, 710))
    ]
    records += [record("mean", 1.0, seed, 90.0 + seed / 10, cost=700) for seed in range(3)]
    cells = {(row.arm, row.length) for row in measurements(records, cost="samples_forwarded")}
    assert cells == {("full", 1.0), ("full", 0.7), ("mean", 1.0)}
    judged = judge(records, QUESTION)
    assert [verdict.arm for verdict in judged.verdicts] == ["mean"]
    (point,) = judged.assessment.frontier.points
    assert point.to_shorter.mean == pytest.approx(1.1, abs=0.01)


def test_lower_is_better():
    records = a_frontier(5)
    turned = [
        record(row.arm, row.length, row.seed, -row.metric, cost=row.samples_forwarded)
        for row in records
    ]
    question = Question(margin=0.5, higher_is_better=False)
    judged = judge(turned, question)
    assert judged.assessment.decision.kind == "use"
    assert judged.verdicts[-1].outcome.text.startswith("Lossless: ")


def test_a_record_is_read_with_its_types():
    costs = {
        "samples_forwarded": 9, "samples_backpropagated": 8, "optimizer_steps": 7, "seconds": 6.0,
        "overhead_seconds": 0.5, "evaluation_seconds": 0.4, "peak_memory_mb": None,
    }  # fmt: skip
    run = {"arm": "mean", "length": 0.5, "seed": 3, "metric": math.nan, "saved_fraction": 0.2}
    run |= {"costs": costs, "settings": {"leader": "infobatch"}}
    read = read_record(
        {**run, "hardware": {"processor": "Fast", "threads": 2, "system": "Linux 7"}}
    )
    assert (read.metric, read.samples_backpropagated, read.leader) == (None, 8, "infobatch")
    assert read.machine == "Fast, 2 threads", "the system is updated now and then"
    read = read_record({**run, "hardware": {"processor": "Fast", "threads": 1, "gpu": "Faster"}})
    assert read.machine == "Faster, 1 thread"


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


def test_an_earlier_verdict_is_on_the_seeds_of_the_verdict_and_no_others():
    """Seeds 3 and 4 lack half the length on all data, so nothing is said of an arm on them."""
    half = [record("full", 0.5, seed, 88.0 + 0.1 * seed) for seed in range(3)]
    full = [record("full", 1.0, seed, 90.0) for seed in range(5)]
    metrics = [90.0, 90.01, 89.99, 85.0, 90.0]
    arm = [record("mean", 1.0, seed, value, cost=700) for seed, value in enumerate(metrics)]
    (verdict,) = judge([*half, *full, *arm], QUESTION).verdicts
    assert verdict.outcome.word == "lossless"
    assert verdict.earlier == ()


def test_an_earlier_verdict_counts_the_seeds_on_which_the_arm_diverged():
    def earlier(metrics):
        full = [record("full", 1.0, seed, 90.0) for seed in range(len(metrics))]
        arm = [record("mean", 1.0, seed, value, cost=700) for seed, value in enumerate(metrics)]
        (verdict,) = judge([*full, *arm], QUESTION).verdicts
        assert verdict.outcome.word == "worse than the margin"
        return verdict.earlier

    assert earlier([90.0, None, 90.01, 89.99, 90.0]) == (), "diverged within the first three"
    assert earlier([90.0, 90.01, 89.99, 90.0, None]) == (Earlier(4, "lossless"),)


def test_random_pruning_is_compared_with_on_the_paired_seeds():
    """On a seed on which one of them diverged there is no difference, and so there is none at all."""
    full = [record("full", n, seed, 80 + 10 * n) for n in (0.5, 1.0) for seed in range(4)]
    full = [row for row in full if (row.length, row.seed) != (0.5, 3)]
    arm = [record("mean", 1.0, seed, 90.0, cost=700) for seed in range(4)]
    random = [record("random", 1.0, seed, 89.0 + seed, cost=700) for seed in range(4)]
    verdict, _ = judge([*full, *arm, *random], QUESTION).verdicts
    assert (verdict.to_random.count, verdict.to_random.mean) == (3, pytest.approx(0.0))
    random[1] = record("random", 1.0, 1, None, cost=700)
    verdict, _ = judge([*full, *arm, *random], QUESTION).verdicts
    assert verdict.to_random is None
