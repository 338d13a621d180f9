"""The decision: each of its kinds with its sentence, and how often a lucky winner gets through."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from measured import paired, runs_of

import infobatch.lab.stats
from infobatch.lab.stats.decision import conclude_from, decide
from infobatch.lab.stats.frontier import frontier
from infobatch.lab.stats.intervals import SequentialDesign
from infobatch.lab.stats.runs import Question
from infobatch.lab.stats.verdict import regime_gate

NOISE = np.array([-0.02, 0.01, 0.0, 0.02, -0.01])
OTHER = np.array([0.01, -0.02, 0.02, 0.0, -0.01])
# Full data gains 2 points from half its length to the whole of it.
FULL = runs_of("full", {0.5: 88 + NOISE, 0.75: 89.4 + OTHER, 1.0: 90 - NOISE})


def concluded(*groups, full=FULL, margin=0.5, seeds=5, **question):
    runs = [run for group in (full, *groups) for run in group if run.seed < seeds]
    return conclude_from(paired(runs), Question(margin, higher_is_better=True, **question))


def sentence_of(*groups, **question):
    return concluded(*groups, **question).decision.sentence


def test_use():
    # In 1 / cost, 66 is 0.7273 of the way from 50 to 75, where full data has 88 + 1.4 * 0.7273 =
    # 89.02; and 89.95 is 0.9167 of the way from 75 to 100, at 97.3: 1 - 66 / 97.3 = 32%.
    quantile = runs_of("quantile", {1.0: 89.95 + OTHER}, cost=66)
    settings = {"quantile": "learning rate 0.2"}
    conclusions = concluded(quantile, unit="points", settings=settings)
    assert conclusions.decision.sentence == (
        "Use `quantile` with learning rate 0.2: as good as full data at 32% less compute (31–33%); "
        "shorter training at its cost loses 0.98 points."
    )
    assert (conclusions.decision.kind, conclusions.decision.arm) == ("use", "quantile")
    assert conclusions.verdicts[0].word == "lossless"
    json.dumps(dataclasses.asdict(conclusions), allow_nan=False)


def test_use_where_the_arm_is_better_than_full_data_or_cheaper_than_its_curve():
    sentence = sentence_of(runs_of("mean", {1.0: 90.3 + OTHER}, cost=40), epochs=30)
    assert sentence == (
        "Use `mean`: as good as full data at 60% less compute (60% or more); "
        "shorter training at its cost loses more than 2.00."
    )


def test_use_says_where_the_arms_own_curve_reaches_full_quality():
    """Better than full data at one length and worse at the next: the saving is in between."""
    runs = runs_of("mean", {0.5: 88.8 + OTHER, 1.0: 90.6 + OTHER}, cost=80)
    sentence = sentence_of(runs)
    # In 1 / cost, 90 is two thirds of the way from 40 to 80: 1 / (1 / 120 + 1 / 120) = 60.
    assert sentence == (
        "Use `mean`: as good as full data at 20% less compute (20% or more); shorter training at "
        "its cost loses 0.45. Its own curve reaches full data's quality at 40% less compute (39–41%)."
    )
    never = sentence_of(runs_of("mean", {0.5: 88.4 + OTHER, 1.0: 89.9 + OTHER}, cost=66))
    assert "own curve" not in never


def test_the_length_is_part_of_the_advice():
    runs = runs_of("mean", {0.8: 89.9 + OTHER, 1.0: 90.0 + OTHER}, cost=66)
    sentence = sentence_of(runs, epochs=30)
    assert sentence == (
        "Use `mean` for 24 epochs: at equal quality it saves 40% of the compute (39–41%), and it is "
        "as good as full data: −0.10 (−0.13 to −0.07) at 47% less compute."
    )
    assert sentence_of(runs).startswith("Use `mean` for 0.8 × the epochs: ")
    sentence = sentence_of(runs, epochs=3)
    assert sentence.startswith("Use `mean` for 2.4 epochs: "), "not the 2 that it would round to"
    assert sentence_of(runs, epochs=5).startswith("Use `mean` for 4 epochs: ")


def test_use_although_the_gate_is_not_clear():
    full = runs_of("full", {0.6: 89.4 + NOISE, 1.0: 90 - NOISE})
    sentence = sentence_of(runs_of("mean", {1.0: 90 + OTHER}, cost=66), full=full, margin=0.6)
    assert sentence.endswith("Whether training is longer than it needs to be is not clear yet.")


def test_train_shorter():
    full = runs_of("full", {0.5: 87 + NOISE, 0.6666: 90 + OTHER, 1.0: 90.3 - NOISE})
    mean = runs_of("mean", {1.0: 89.5 + OTHER}, cost=66.66)
    conclusions = concluded(mean, full=full, margin=1.0, unit="points", epochs=30)
    assert conclusions.decision.kind == "train shorter"
    assert conclusions.decision.sentence == (
        "`mean` is lossless against full data, but shorter training is better by 0.50 points at "
        "the same cost: train 20 epochs instead of 30."
    )
    sentence = sentence_of(mean, full=full, margin=1.0)
    assert sentence.endswith("is better by 0.50 at the same cost: train 0.67 × the epochs.")


def test_shorten_first():
    full = runs_of("full", {0.5: 89.95 + NOISE, 1.0: 90 + OTHER})
    conclusions = concluded(runs_of("mean", {1.0: 91 + OTHER}, cost=66), full=full)
    assert conclusions.decision.kind == "shorten first"
    assert conclusions.decision.sentence == (
        "Training is longer than it needs to be: all data for 0.5 × the epochs is as good. "
        "Shorten it first; this run cannot judge pruning."
    )


def test_use_instead_of_shorter_training():
    """Above the curve, but a loss by more than the margin: what the frontier is for."""
    mean = runs_of("mean", {1.0: 89.4 + OTHER}, cost=60)
    conclusions = concluded(mean, unit="points", epochs=40)
    assert conclusions.decision.kind == "use instead of shorter training"
    assert conclusions.decision.sentence == (
        "Use `mean` instead of shorter training: for 40 epochs it is as good as all data for 30 "
        "epochs, at 20% less compute (20–20%). It is not as good as all data for 40 epochs: −0.60 "
        "points (−0.62 to −0.58) at 40% less compute, where the margin is 0.5. For that quality keep "
        "all data."
    )
    assert (conclusions.decision.leans, conclusions.decision.more_seeds) == (None, None)
    sentence = sentence_of(mean)
    assert "for 1 × the epochs it is as good as all data for 0.75 × the epochs, at 20%" in sentence
    assert "It is not as good as full data at full length: −0.60 (" in sentence


def test_use_instead_of_shorter_training_while_it_is_open_whether_it_is_lossless():
    mean = runs_of("mean", {1.0: 89.8 + 20 * OTHER}, cost=50)
    settings = {"mean": "learning rate 0.2"}
    decision = concluded(mean, unit="points", settings=settings, epochs=40).decision
    assert (decision.kind, decision.leans) == ("use instead of shorter training", "use")
    assert decision.sentence == (
        "Use `mean` with learning rate 0.2 instead of shorter training: for 40 epochs it is as good as "
        "all data for 36 epochs, at 44% less compute (34% or more). Whether it is as good as all data "
        "for 40 epochs is open: −0.20 points (−0.59 to +0.19) at 50% less compute, where the "
        f"margin is 0.5. It leans towards yes; deciding would take {decision.more_seeds.text}."
    )
    low = concluded(runs_of("mean", {1.0: 89.4 + 20 * OTHER}, cost=50)).decision
    assert (low.kind, low.leans) == ("use instead of shorter training", "keep full data")
    assert "It leans towards no; " in low.sentence
    above = runs_of("mean", {1.0: 90.2 + 40 * OTHER}, cost=50)
    assert sentence_of(above).startswith(
        "Use `mean` instead of shorter training: for 1 × the epochs it saves at least 50% ("
    )


def test_what_is_sure_of_one_arm_is_said_before_what_is_open_of_another():
    sure = runs_of("sure", {1.0: 89.3 + OTHER}, cost=50)
    perhaps = runs_of("perhaps", {1.0: 89.8 + 20 * OTHER}, cost=90)
    decision = concluded(perhaps, sure).decision
    assert (decision.kind, decision.arm) == ("use instead of shorter training", "sure")
    assert decision.sentence.startswith("Use `sure` instead of shorter training: for 1 × the")
    assert "Not decided: `perhaps` is −0.20 (" in decision.sentence
    assert decision.more_seeds is not None


LENGTHS = (0.6, 0.8, 1.0)


def arm_of(name, qualities, *, cost, noise=OTHER):
    """An arm at the three lengths that are pooled."""
    by_length = zip(LENGTHS, qualities, strict=True)
    return runs_of(name, {n: quality + noise for n, quality in by_length}, cost=cost)


def test_several_lengths_together_decide_what_no_length_decides_alone():
    """Noise that differs from length to length: no single one is above the curve, their mean is."""
    noises = [30 * NOISE, 30 * OTHER, -30 * (NOISE + OTHER)]
    lengths = zip(LENGTHS, (88.7, 89.4, 89.75), noises, strict=True)
    runs = runs_of("mean", {n: quality + noise for n, quality, noise in lengths}, cost=85)
    decision = concluded(runs, epochs=40, unit="points").decision
    assert (decision.kind, decision.length) == ("use instead of shorter training", 1.0)
    assert decision.sentence.startswith(
        "Use `mean` instead of shorter training: at equal quality it saves "
    )
    assert "Not decided" not in decision.sentence
    pairs = paired(FULL, runs)
    alone = dataclasses.replace(frontier(pairs, confidence=1 - 0.05 / 3), pooled=())
    gate = regime_gate(pairs, margin=0.5)
    assert decide(alone, gate, Question(0.5, higher_is_better=True)).kind == "not decided"


def test_a_saving_that_is_not_worth_having_is_a_decision():
    on_the_curve = arm_of("mean", (87.53, 88.7, 89.4), cost=75)
    decision = concluded(on_the_curve, margin=1.0, epochs=40).decision
    assert decision.kind == "train shorter"
    assert (
        "`mean` is lossless against full data, but at equal quality it saves" in decision.sentence
    )
    assert decision.sentence.endswith("less than 5%: train 30 epochs on all data for its cost.")
    worse = concluded(on_the_curve, margin=0.3).decision
    assert worse.kind == "keep full data"
    assert " At equal quality it saves " in worse.sentence


def test_the_level_of_savings_from_several_lengths_is_stated():
    arms = [arm_of(name, (88.6, 89.4, 89.8), cost=85) for name in ("a", "b")]
    assert "the 2 arms share half of the error: 98.75%. " in concluded(*arms).level
    assert "half of the error is used: 97.5%. " in concluded(arms[0]).level


def test_arms_that_are_cheaper_than_the_curve_are_judged_by_single_lengths():
    """The test of a saving of nothing would need full data at costs that were not run."""
    cheap = arm_of("mean", (88.0, 88.8, 89.4), cost=55)
    assert frontier(paired(FULL, cheap)).pooled[0].below_curve
    assert "several lengths" not in concluded(cheap).level


def test_keep_full_data():
    mean = runs_of("mean", {1.0: 89.0 + OTHER}, cost=66)
    assert sentence_of(mean, unit="points") == (
        "Keep all data: no arm is as good at less compute. The best, `mean`, is −1.00 points "
        "(−1.02 to −0.98) against full data at 34% less compute; shorter training at that cost "
        "loses 0.98 points."
    )
    diverging = runs_of("bad", {1.0: [90, 90, None, 90, 90]}, cost=66)
    assert "less compute, and some diverged. The best, `mean`" in sentence_of(mean, diverging)
    assert sentence_of(diverging) == "Keep all data: every other arm diverged."


def test_not_decided_whether_lossless():
    mean = runs_of("mean", {1.0: 89.8 + 20 * OTHER}, cost=88)
    conclusions = concluded(mean, unit="points")
    decision = conclusions.decision
    assert (decision.kind, decision.leans, decision.arm) == ("not decided", "use", "mean")
    assert decision.sentence.startswith(
        "Not decided: `mean` is −0.20 points (−0.59 to +0.19) against"
    )
    assert "where the margin is 0.5; its saving at equal quality is 2" in decision.sentence
    assert decision.sentence.endswith(
        f"It leans towards using it; deciding would take {decision.more_seeds.text}."
    )


def test_not_decided_whether_better_than_shorter_training():
    mean = runs_of("mean", {1.0: 89.6 + 4 * OTHER}, cost=80)
    decision = concluded(mean).decision
    assert decision.leans == "use"
    assert decision.sentence.startswith(
        "Not decided: `mean` is as good as full data at 20% less compute, but shorter training may "
        "be, too: its saving at equal quality is "
    )
    behind = concluded(runs_of("mean", {1.0: 89.54 + 4 * OTHER}, cost=80), margin=0.6).decision
    assert (behind.kind, behind.leans) == ("not decided", "train shorter")
    assert "leans towards shorter training" in behind.sentence


def test_not_decided_but_leaning_towards_full_data():
    decision = concluded(runs_of("mean", {1.0: 89.4 + 20 * OTHER}, cost=74)).decision
    assert (decision.kind, decision.leans) == ("not decided", "keep full data")
    assert "It leans towards keeping all data" in decision.sentence


def test_more_compute_than_full_data_is_said():
    decision = concluded(runs_of("mean", {1.0: 90.02 + 20 * OTHER}, cost=110)).decision
    assert "is as good as full data at 10% more compute, but" in decision.sentence


def test_one_seed():
    conclusions = concluded(runs_of("mean", {1.0: [89.9]}, cost=66), seeds=1, unit="points")
    assert conclusions.decision.sentence == (
        "Not decided: there is one seed. On it, `mean` was 0.12 points worse than full data at 34% "
        "less compute; shorter training at that cost lost 1.00 points. One seed cannot tell this "
        "from chance; 5 usually can."
    )
    assert (conclusions.decision.kind, conclusions.decision.leans) == ("not decided", "use")
    full = runs_of("full", {0.5: [89.9], 1.0: [90.0]})
    sentence = sentence_of(runs_of("mean", {1.0: [89.9]}, cost=66), full=full)
    assert (
        "All data for 0.5 × the epochs was within the margin, so training may be longer" in sentence
    )


def test_two_seeds_decide_nothing():
    for quality in (90.0, 80.0):
        conclusions = concluded(runs_of("mean", {1.0: [quality] * 2}, cost=66), seeds=2)
        assert conclusions.decision.kind == "not decided"
    assert conclusions.decision.leans == "keep full data"
    assert conclusions.decision.sentence.startswith(
        "Not decided: there are two seeds. On average, `mean` was 10.00 worse than full data at 34% "
        "less compute; shorter training at that cost lost 0.9"
    )
    assert conclusions.decision.sentence.endswith(
        "Two seeds cannot tell this from chance; 5 usually can."
    )


def test_nothing_to_decide():
    quantile = runs_of("quantile", {1.0: 90 + OTHER}, cost=66)
    other_seeds = [dataclasses.replace(run, seed=run.seed + 10) for run in quantile]
    assert sentence_of(other_seeds, seeds=100) == (
        "Not decided: no seed has finished on full data at every length and in another arm."
    )


def test_full_data_alone_is_told_whether_it_trains_longer_than_it_needs_to():
    decision = concluded().decision
    assert decision.kind == "not decided"
    assert decision.sentence == (
        "Training is not longer than it needs to be: full data for 0.5 × the epochs loses 2.00 "
        "(1.96 to 2.04), more than the margin."
    )
    flat = runs_of("full", {0.5: 90 + NOISE, 1.0: 90 + OTHER})
    decision = concluded(full=flat).decision
    assert decision.kind == "shorten first"
    assert decision.sentence.startswith(
        "Training is longer than it needs to be: all data for 0.5 ×"
    )


def test_controls_are_shown_and_not_recommended():
    random = runs_of("random", {1.0: 89.95 + OTHER}, cost=50)
    mean = runs_of("mean", {1.0: 89.95 + OTHER}, cost=66)
    conclusions = concluded(random, mean)
    assert conclusions.decision.arm == "mean"
    assert [point.arm for point in conclusions.frontier.points] == ["random", "mean"]
    assert "share that error" not in conclusions.level, "one candidate, nothing to share"
    same = [dataclasses.replace(run, arm="another") for run in random]
    assert concluded(same, mean).decision.arm == "another", "if it were not a control"


def test_level_is_stated():
    arms = [runs_of(arm, {0.5: 89 + OTHER, 1.0: 90 + OTHER}, cost=66) for arm in ("a", "b")]
    conclusions = concluded(*arms)
    assert conclusions.frontier.confidence == 0.95
    assert conclusions.level == (
        "If no arm is worth using, the decision is “Use” in at most 2.5% of all comparisons. "
        "The 4 pairs of arm and length share that error, so intervals in the decision are 98.75% "
        "intervals, wider than those of each pair by itself elsewhere. Intervals are over seeds, not over test items."
    )


def test_a_design_widens_every_interval():
    mean = runs_of("mean", {1.0: 89.95 + OTHER}, cost=66)
    design = SequentialDesign(most=10)
    usual, looking = concluded(mean), concluded(mean, most_seeds=10)
    assert looking.frontier.confidence == design.confidence()
    assert looking.frontier.points[0].saving.low < usual.frontier.points[0].saving.low
    assert looking.gate.loss.low < usual.gate.loss.low
    assert "at all looks with up to 10 seeds together" in looking.level
    with pytest.raises(ValueError, match="There are 5 seeds, but"):
        concluded(mean, most_seeds=4)


@pytest.mark.parametrize("margin", [5.0, 0.5])
def test_lucky_winners(margin):
    """Four arms and lengths on full data's curve exactly: "Use …" in at most 2.5% of comparisons.

    With the large margin all are lossless; with the small one, half of them are worse than that.
    """
    generator = np.random.default_rng(5)
    count, seeds = 300, 5
    wrong = {0.95: 0, 1 - 0.05 / 4: 0}
    for _ in range(count):
        noise = iter(generator.normal(0, 0.3, (7, seeds)))
        full = {0.4: 80 + next(noise), 0.7: 86 + next(noise), 1.0: 90 + next(noise)}
        runs = runs_of("full", full)
        for arm in ("a", "b"):
            runs += runs_of(arm, {0.7: 86 + next(noise), 1.0: 90 + next(noise)})
        pairs, question = paired(runs), Question(margin, higher_is_better=True)
        gate = regime_gate(pairs, margin=margin)
        for confidence in wrong:
            placed = frontier(pairs, confidence=confidence)
            wrong[confidence] += decide(placed, gate, question).kind.startswith("use")
    uncorrected, corrected = (rate / count for rate in wrong.values())
    assert corrected <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / count)
    assert uncorrected > corrected + 0.02, "without the correction, the best of four is often lucky"


def test_an_arm_above_the_curve_that_is_worse_by_the_margin_is_rarely_called_as_good():
    """Worse by the margin exactly, at a third of the cost: to be used, but not as lossless."""
    generator = np.random.default_rng(6)
    count, seeds, margin = 150, 5, 0.5
    kinds = []
    for _ in range(count):
        noise = iter(generator.normal(0, 0.3, (7, seeds)))
        full = {0.4: 80 + next(noise), 0.7: 86 + next(noise), 1.0: 90 + next(noise)}
        runs = runs_of("full", full)
        for arm in "abcd":
            runs += runs_of(arm, {1.0: 90 - margin + next(noise)}, cost=33)
        kinds.append(concluded(full=runs, margin=margin).decision.kind)
    assert kinds.count("use") / count <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / count)
    assert kinds.count("use instead of shorter training") / count > 0.9


def test_importing_is_quick_because_scipy_waits():
    """The command line must start in half a second."""
    stats = Path(infobatch.lab.stats.__file__).parent
    code = f"""
import sys, types
for name, path in (("infobatch", {str(stats.parent.parent)!r}), ("infobatch.lab", {str(stats.parent)!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
import infobatch.lab.stats.decision
print(sorted({{"scipy", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
