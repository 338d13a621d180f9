"""Arms by name, with their options, and from a file of one's own."""

import json
from pathlib import Path

import pytest

from infobatch.lab.run.arms import Arm, leader_of, parse_arms
from infobatch.policies import POLICIES, MeanPrune, QuantilePrune, RandomPrune
from lab_runs import compare

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
RULES = """
from dataclasses import dataclass

from infobatch import MeanPrune


@dataclass(frozen=True)
class Gentle(MeanPrune):
    ratio: float = 0.25


class NoRule:
    pass
"""


def policy(text):
    return Arm(text).policy(num_samples=100, passes=1000, epochs=10, budget=700)


def test_options_reach_the_policy():
    assert policy("mean:ratio=0.6") == MeanPrune(0.6)
    assert policy("infobatch") == MeanPrune()
    assert policy("random:ratio=0.3") == RandomPrune(0.3)
    assert policy("quantile:bands=((0.5,0.5),)") == QuantilePrune(((0.5, 0.5),))
    arm = Arm("mean:ratio=0.6:delta=0.9:shrink=batch")
    assert (arm.rule, arm.delta, arm.shrink) == ("mean", 0.9, "batch")
    assert policy(arm.name) == MeanPrune(0.6), "delta and shrink are not the policy's"
    assert (Arm("mean").delta, Arm("mean").shrink) == (None, "epoch"), "the rule's own"


def test_a_budget_and_other_limits_are_options_of_every_rule(tmp_path):
    arm = "quantile:save=0.3:max_noise=5:warmup=1"
    assert Arm(arm).limits == {"save": 0.3, "max_noise": 5, "warmup": 1}
    assert policy(arm) == QuantilePrune(), "none of them is the policy's"
    assert not Arm("random:save=0.3").follows, "it has a budget of its own"
    parse_arms("full,importance:save=0.7:delta=1.0")  # with all epochs pruned
    with pytest.raises(
        ValueError, match=r"save=0\.7 is not possible in 1000 epochs: at most 0\.66"
    ):
        parse_arms("full,importance:save=0.7")
    results = compare(tmp_path, "full,mean:save=0.3", 1, TINY)
    assert results["runs"][-1]["saved_fraction"] == pytest.approx(0.3, abs=0.02)
    with pytest.raises(AssertionError, match="tiny_task does not define labels"):
        compare(tmp_path / "b", "full,mean:protect_classes=0.5", 1, TINY)


def test_the_order_is_an_option_of_all_data_and_of_every_rule():
    for name in ("full:order=stratified", "auto:order=stratified"):
        (_, arm) = parse_arms(f"full,{name}")
        assert arm.limits == {"order": "stratified"}
    with pytest.raises(ValueError, match=r"order got 'even', expected 'random' or 'stratified'"):
        parse_arms("full,full:order=even")


@pytest.mark.parametrize(
    ("arm", "can"),
    [
        ("auto", True),
        ("mean:delta=1.0", True),
        ("mean:shrink=batch", False),
        ("auto:probe=0", False),  # all data trains without a probe
        ("auto:order=stratified", False),  # and in its own order
        ("full", False),
        ("random", False),
    ],
)
def test_only_arms_that_a_run_on_all_data_can_tell_are_followed(arm, can):
    assert Arm(arm).can_be_followed is can


def test_two_spellings_of_a_rule_are_followed_once_and_both_are_told(tmp_path):
    results = compare(tmp_path, "full,auto,auto:tau=0.2", 1, TINY)
    (record,) = (run for run in results["runs"] if run["shadows"])
    assert sorted(record["shadows"]) == ["auto", "auto:tau=0.2"]
    assert record["shadows"]["auto"] == record["shadows"]["auto:tau=0.2"]


def test_a_random_arm_follows_unless_it_has_a_ratio():
    assert Arm("random").follows
    assert not Arm("random:ratio=0.3").follows
    # 1,000 passes with 300 left out, in epochs 1 to 8 of 0 to 9.
    assert policy("random").ratio == pytest.approx(300 / 800)


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"none"}))
def test_every_registered_policy_is_an_arm_that_trains(name, tmp_path):
    arms = f"full,{name}" if name != "random" else "full,random:ratio=0.3"
    task = TINY
    if POLICIES[name].needs_labels:
        task = tmp_path / "labelled_task.py"
        task.write_text(
            TINY.read_text() + "\n\ndef labels(data):\n    return data[:][1].tolist()\n"
        )
    results = compare(tmp_path / "out", arms, 1, task)
    run = results["runs"][-1]
    assert run["arm"].partition(":")[0] == name
    assert run["metric"] is not None
    options = Arm(name)._options()
    assert {"delta", "shrink"} <= set(options)


def test_lists():
    names = [arm.name for arm in parse_arms("full, mean:ratio=0.6,quantile:bands=((0.2,0.5),)")]
    assert names == ["full", "mean:ratio=0.6", "quantile:bands=((0.2,0.5),)"]
    assert leader_of(parse_arms("full,quantile,infobatch,random")) == Arm("infobatch")
    assert leader_of(parse_arms("full,mean:ratio=0.6,short")) == Arm("mean:ratio=0.6")
    assert leader_of(parse_arms("full")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "full,fill",
            "There is no arm 'fill'. Expected some of full, short, random, infobatch, ",
        ),
        (
            "full,mean:ration=0.6",
            "--arms got 'mean:ration=0.6', but mean has no option 'ration'. Expected some of ratio",
        ),
        ("full,mean:ratio=2", "--arms got 'mean:ratio=2': "),
        ("full,mean:save=2", "--arms got 'mean:save=2': save got 2, expected a share of the run's"),
        ("full,noise:save=0.3", "--arms got 'noise:save=0.3': save=0.3 was given with NoisePrune"),
        ("full,mean:ratio", "expected name=value after each colon, such as mean:ratio=0.6"),
        ("full,mean:delta=2", "delta=2, expected a share from 0 to 1."),
        ("full,mean:delta=x", "delta=x, expected a share from 0 to 1."),
        ("full,mean:shrink=half", "shrink=half, expected epoch or batch."),
        ("full:ratio=0.5", "but full has no option 'ratio'. Expected some of order."),
        ("full,nowhere.py:Rule", "but there is no file nowhere.py."),
        ("full,full", "expected each arm once and at least one."),
        (
            "full,short",
            "The arms short and random match the cost of a pruned arm, but there is none.",
        ),
    ],
)
def test_what_is_wrong_is_said(text, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared
        parse_arms(text)
    assert message in str(caught.value)


def test_a_rule_of_ones_own(tmp_path):
    rules = tmp_path / "my_rules.py"
    rules.write_text(RULES)
    arms = f"full,{rules}:Gentle,{rules}:Gentle:ratio=0.9"
    results = compare(tmp_path / "out", arms, 1, TINY)
    saved = {run["arm"].rpartition("/")[2]: run["saved_fraction"] for run in results["runs"]}
    assert 0 == saved["full"] < saved["my_rules.py:Gentle"] < saved["my_rules.py:Gentle:ratio=0.9"]
    for name, message in (
        ("Missing", "has no policy 'Missing'"),
        ("NoRule", "has no policy 'NoRule'"),
        ("Gentle:size=1", "has no option 'size'. Expected some of ratio"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_arms(f"full,{rules}:{name}")
    rules.write_text(RULES.replace("0.25", "0.75"))
    with pytest.raises(ValueError, match="the text of the rule's file has changed"):
        compare(tmp_path / "out", arms, 1, TINY)
    rules.write_text("raise ValueError('no')")
    with pytest.raises(ValueError, match="fails on import: ValueError: no"):
        parse_arms(f"full,{rules}:Gentle")


def test_delta_reaches_the_training(tmp_path):
    results = compare(tmp_path, "full,mean:delta=0.5,mean:delta=1", 1, TINY)
    kept = {
        run["arm"]: [epoch["kept_fraction"] < 1 for epoch in run["history"]]
        for run in results["runs"]
    }
    assert kept["mean:delta=0.5"] == [False, True, False, False]
    assert kept["mean:delta=1"] == [False, True, True, True]
    assert json.loads((tmp_path / "runs/mean_delta=0.5-1-0/result.json").read_text())


def test_shrink_reaches_the_training(tmp_path):
    results = compare(tmp_path, "full,mean,mean:shrink=batch", 1, TINY)
    steps = {run["arm"]: run["costs"]["optimizer_steps"] for run in results["runs"]}
    assert steps["mean"] < steps["full"] == steps["mean:shrink=batch"] == 32
    saved = {run["arm"]: run["saved_fraction"] for run in results["runs"]}
    assert saved["mean:shrink=batch"] > 0.1
    losses = {
        run["arm"]: [epoch["train_loss"] for epoch in run["history"]] for run in results["runs"]
    }
    first = losses["mean"][0]
    assert losses["mean:shrink=batch"][0] == pytest.approx(first), "the first epoch is whole"
    assert losses["mean:shrink=batch"][-1] == pytest.approx(losses["mean"][-1], rel=0.2)
