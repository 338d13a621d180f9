"""The regime gate: whether half the length is as good, for certain, or not known."""

import math

import numpy as np
import pytest
from measured import runs_of

from infobatch.lab.stats.gate import regime_gate

NOISE = np.array([-0.1, 0.0, 0.1])  # 95% interval: -+0.2484


def gate_of(qualities, margin=0.5, higher_is_better=True):
    return regime_gate(runs_of("full", qualities), margin=margin, higher_is_better=higher_is_better)


def test_half_the_length_loses_more_than_the_margin():
    gate = gate_of({0.5: 89 + NOISE, 1.0: [90, 90, 90]})
    assert (gate.regime, gate.length) == ("can tell", 0.5)
    assert (gate.loss.mean, gate.loss.low) == pytest.approx((1, 1 - 0.248414))
    assert gate.text == (
        "Training is not longer than it needs to be: full data for 0.5 × the epochs loses 1.00 "
        "(0.75 to 1.25), more than the margin."
    )


def test_half_the_length_is_as_good():
    gate = gate_of({0.5: 89.9 + NOISE, 1.0: [90, 90, 90]})
    assert gate.regime == "too long"
    assert gate.text == (
        "Training is longer than it needs to be: all data for 0.5 × the epochs is as good. "
        "Shorten it first; this run cannot judge pruning."
    )


@pytest.mark.parametrize(("half", "words"), [(89.6, "loses 0.40 (0.15 to 0.65)"), (89.3, "0.70")])
def test_an_interval_that_holds_the_margin_is_not_clear(half, words):
    gate = gate_of({0.5: half + NOISE, 1.0: [90, 90, 90]})
    assert gate.regime == "unknown"
    assert words in gate.text


def test_lower_is_better():
    qualities = {0.5: 1.0 + NOISE / 10, 1.0: [0.9, 0.9, 0.9]}
    assert gate_of(qualities, 0.05, higher_is_better=False).regime == "can tell"
    assert gate_of(qualities, 0.2, higher_is_better=False).regime == "too long"
    assert gate_of(qualities, 0.05, higher_is_better=True).regime == "too long"


def test_half_is_interpolated():
    # In 1 / length a half is 2, a third of the way from 2.5 to 1: 88 + (91 - 88) / 3 = 89.
    gate = gate_of({0.4: 88 + NOISE, 1.0: 91 + NOISE})
    assert gate.loss.mean == pytest.approx(2)
    assert gate.loss.sd == pytest.approx(0, abs=1e-9)
    # The longest training need not be called 1.
    assert gate_of({0.8: 88 + NOISE, 2.0: 91 + NOISE}).loss.mean == pytest.approx(2)


def test_half_is_taken_as_measured_and_not_pooled():
    gate = gate_of({0.5: 91 + NOISE, 1.0: [90, 90, 90]})
    assert gate.loss.mean == pytest.approx(-1)
    assert gate.loss.high == pytest.approx(-1 + 0.248414)
    assert gate.regime == "too long"


def test_without_half_the_length_a_loss_at_a_longer_one_is_enough():
    gate = gate_of({0.6: 89 + NOISE, 1.0: [90, 90, 90]})
    assert (gate.regime, gate.length) == ("can tell", 0.6)
    gate = gate_of({0.6: 89.9 + NOISE, 1.0: [90, 90, 90]})
    assert gate.regime == "unknown"
    assert gate.text.endswith("the margin is 0.5 and half the epochs have not been run.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds(seeds):
    gate = gate_of({0.5: [80.0, 80.0][:seeds], 1.0: [90.0, 90.0][:seeds]})
    assert gate.regime == "unknown"
    assert gate.loss.mean == 10
    assert gate.text.endswith("and it takes at least 3 seeds to tell.")


def test_one_length_or_no_seed():
    for qualities in ({1.0: [90, 90, 90]}, {0.5: [None, None], 1.0: [90, 90]}):
        gate = gate_of(qualities)
        assert (gate.regime, gate.length, gate.loss) == ("unknown", None, None)
        assert "not been trained for two lengths" in gate.text


@pytest.mark.parametrize("margin", [0, -1, math.nan])
def test_margin(margin):
    with pytest.raises(ValueError, match=r"margin is .*, expected a number above zero"):
        gate_of({1.0: [90]}, margin)


def test_a_true_loss_of_the_margin_is_called_too_long_in_at_most_one_of_forty():
    generator = np.random.default_rng(0)
    count = 2000
    half = generator.normal(89.5, 0.2, (count, 4))
    regimes = [gate_of({0.5: qualities, 1.0: [90] * 4}).regime for qualities in half]
    wrong = regimes.count("too long") / count
    assert abs(wrong - 0.025) < 4 * math.sqrt(0.025 * 0.975 / count)
