"""What a policy is: the base class, its attributes, and what it makes of mistakes."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import BiasedPolicyWarning
from infobatch.policies.base import tracks_of
from infobatch.tracks import Ema, MovingVariance, Visits, Window

KNOWN = {
    "tracks": (),
    "smoothing": 0.0,
    "budget": "scale",
    "gradient": None,
    "default_delta": 0.875,
    "first_epoch": 0,
    "most_left_out": 0.9,
    "refreshes": False,
    "needs_labels": False,
    "shardable": False,
}


class Half(infobatch.Policy):
    """Half of the samples, with or without weights that make up for the others."""

    def __init__(self, weights="inverse"):
        self.weights = weights

    def strata(self, samples):
        return infobatch.Strata(np.ones(len(samples), np.uint8), (0.5,), self.weights)


def test_defaults():
    policy = Half()
    assert {name: getattr(policy, name) for name in KNOWN} == KNOWN


def test_a_rule_without_its_method():
    class Nothing(infobatch.Policy):
        pass

    with pytest.raises(TypeError, match=r"abstract class Nothing .*strata"):
        Nothing()


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("needs_label", True, "needs_labels"),
        ("needsLabels", True, "needs_labels"),
        ("need_labels", 1, "needs_labels"),
        ("refresh", True, "refreshes"),
        ("track", (Visits(),), "tracks"),
        ("trakcs", (Visits(),), "tracks"),
        ("smoothning", 0.7, "smoothing"),
        ("shardble", True, "shardable"),
        ("frist_epoch", 3, "first_epoch"),
        ("budgets", "own", "budget"),
        ("gradiant", "root", "gradient"),
        ("default_detla", 1.0, "default_delta"),
        ("needs_label", property(lambda policy: True), "needs_labels"),
        ("needs_label", lambda policy: True, "needs_labels"),
        ("first_epochs", staticmethod(lambda: 3), "first_epoch"),
        ("smothing", field(default=0.7), "smoothing"),
    ],
)
def test_a_misspelt_attribute_is_an_error_of_the_class(name, value, meant):
    text = rf"^class Mine: a policy has no attribute '{name}'. Did you mean '{meant}'\?"
    with pytest.raises(TypeError, match=text):
        type("Mine", (Half,), {name: value})
    mixin = type("Mixin", (), {name: value})
    with pytest.raises(TypeError, match=text):
        type("Mine", (mixin, Half), {})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("biased", "whether a rule is biased follows from the weights of its strata; leave it out"),
        ("delta", "it is an option of InfoBatch and Pruner; a rule has the default, default_delta"),
    ],
)
def test_what_a_rule_does_not_declare(name, why):
    with pytest.raises(TypeError, match=rf"^class Mine: a policy has no attribute '{name}': {why}"):
        type("Mine", (Half,), {name: 0.5})
    policy = Half()
    setattr(policy, name, False)
    with pytest.raises(TypeError, match=rf"Half object.*: a policy has no attribute '{name}'"):
        infobatch.Pruner(10, 3, policy=policy)


def test_a_setting_with_a_slot():
    @dataclass(frozen=True, slots=True)
    class Mine(infobatch.Policy):
        smoothing: float = 0.3

        def strata(self, samples):
            return infobatch.Strata.below(samples.scores, [])

    assert Mine().smoothing == 0.3
    with pytest.raises(TypeError, match=r"Mine\(smoothing=2\): smoothing is 2, expected a number"):
        infobatch.Pruner(10, 3, policy=Mine(smoothing=2))


def test_one_that_is_misspelt_in_the_constructor_is_an_error_of_the_pruner():
    class Mine(Half):
        def __init__(self):
            super().__init__()
            self.needs_label = True

    with pytest.raises(TypeError, match=r"Mine object.* has no attribute 'needs_label'\. Did you"):
        infobatch.Pruner(10, 3, policy=Mine())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tracks", Visits(), r"a tuple of tracks, such as \(Visits\(\),\)"),
        ("tracks", (Visits,), "a tuple of tracks"),
        ("smoothing", 1.5, r"a number in \[0, 1\)"),
        ("budget", "half", "'scale', 'own' or 'none'"),
        ("gradient", "norm", "'cross_entropy', 'score', 'root' or None"),
        ("default_delta", "1", r"a number in \[0, 1\]"),
        ("first_epoch", 2.5, "an integer >= 0"),
        ("first_epoch", True, "an integer >= 0"),
        ("most_left_out", 75, r"a number in \[0, 1\]"),
        ("refreshes", 1, "True or False"),
        ("needs_labels", None, "True or False"),
        ("shardable", "yes", "True or False"),
    ],
)
def test_an_impossible_value_is_an_error_of_the_class_or_of_the_object(name, value, expected):
    with pytest.raises(TypeError, match=rf"^class Mine: {name} is .*, expected {expected}"):
        type("Mine", (Half,), {name: value})
    policy = Half()
    setattr(policy, name, value)
    with pytest.raises(TypeError, match=rf"Half object.*: {name} is .*, expected {expected}"):
        infobatch.Pruner(10, 3, policy=policy)


def test_a_method_where_a_property_is_needed():
    with pytest.raises(TypeError, match=r"tracks is a method, expected .* add @property"):
        type("Mine", (Half,), {"tracks": lambda policy: ()})


def test_attributes_of_its_own_and_every_way_to_set_ours():
    @dataclass(frozen=True)
    class Mine(infobatch.Policy):
        length: int  # a setting without a default
        ratio: float = 0.5
        smoothing: float = 0.3
        targets: list = field(default_factory=list)
        needs_labels = False
        _track = 1  # private: nobody else's business

        @property
        def tracks(self):
            return (Window(self.length),)

        @cached_property
        def first_epoch(self):
            return self.length

        def refresh(self):
            """A method of its own is no attribute."""

        def strata(self, samples):
            assert samples["window"].shape == (len(samples), self.length)
            return infobatch.MeanPrune(self.ratio).strata(samples)

    policy = Mine(3)
    assert tracks_of(policy) == (Window(3), Ema(0.3))
    pruner = infobatch.Pruner(20, 6, policy=policy, delta=1.0)
    for epoch in range(6):
        assert pruner.plan.whole == (epoch < 3)
        for index in pruner.sampler:
            pruner.update(torch.tensor([float(index)]))
        pruner.set_epoch(epoch + 1)


def test_a_moving_variance_brings_the_average_with_it():
    policy = Half()
    policy.smoothing, policy.tracks = 0.8, (MovingVariance(0.8),)
    assert tracks_of(policy) == (MovingVariance(0.8),)


def test_an_object_that_is_no_policy():
    class Rule:
        def strata(self, samples): ...

    with pytest.raises(
        TypeError, match=r"Rule object.* is not a policy, .* write class Rule\(infobatch\.Policy\)"
    ):
        infobatch.Pruner(10, 3, policy=Rule())
    with pytest.raises(TypeError, match=r"policy=0\.5 is not a policy, expected one of 'mean'"):
        infobatch.Pruner(10, 3, policy=0.5)
    with pytest.raises(TypeError, match=r"Half.* is a class, expected an object: pass Half\(…\)"):
        infobatch.Pruner(10, 3, policy=Half)


@pytest.mark.parametrize(
    ("weights", "biased"), [("inverse", False), ("ones", True), ((2.0,), False), ((1.9,), True)]
)
def test_a_user_s_rule_is_biased_by_its_weights_and_the_user_is_told_once(weights, biased):
    pruner = infobatch.Pruner(20, 4, policy=Half(weights), delta=1.0)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        for epoch in range(4):
            for index in pruner.sampler:
                pruner.update(torch.tensor([float(index)]))
            assert len(raised) == (biased and epoch > 0), "when samples are first left out"
    assert [warning.category for warning in raised] == [BiasedPolicyWarning] * biased
    assert all("Half object" in str(warning.message) for warning in raised)


def test_no_attribute_of_a_policy_is_read_with_a_default():
    """They have defaults in one place, the base class."""
    for path in sorted(Path(infobatch.__file__).parent.rglob("*.py")):
        lines = path.read_text().splitlines()
        found = [line for line in lines if "getattr(" in line and "policy" in line and "," in line]
        allowed = ["getattr(policy, name) for name in _EXPECTED"]
        assert all(any(text in line for text in allowed) for line in found), (path, found)
