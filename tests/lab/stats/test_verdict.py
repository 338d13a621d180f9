"""Verdicts: the words, the words on fewer seeds, and the regime gate."""

import math

import numpy as np
import pytest
from measured import paired, runs_of

from infobatch.lab.stats.frontier import Point, frontier
from infobatch.lab.stats.intervals import estimate
from infobatch.lab.stats.verdict import Earlier, regime_gate, verdict, verdicts

NOISE = np.array([-0.1, 0.0, 0.1])  # 95% interval: -+0.2484


def verdict_of(difference, *, margin=0.5, diverged=()):
    return verdict(Point("mean", 1.0, (), diverged, to_full=difference), margin=margin)


@pytest.mark.parametrize(
    ("mean", "word", "leans"),
    [
        (0.5, "lossless", None),
        (0.0, "lossless", None),
        (-0.25, "lossless", None),
        (-0.3, "worse, perhaps within the margin", "lossless"),
        (-0.6, "worse, perhaps within the margin", "worse than the margin"),
        (-0.75, "worse than the margin", None),
    ],
)
def test_words(mean, word, leans):
    found = verdict_of(estimate(mean + NOISE))
    assert (found.word, found.leans) == (word, leans)
    assert (found.more_seeds is None) == (leans is None)


def test_not_decided_leans():
    found = verdict_of(estimate(-0.3 + 3 * NOISE))  # -1.05 to 0.45
    assert (found.word, found.leans) == ("not decided", "lossless")
    found = verdict_of(estimate(-0.6 + 3 * NOISE))
    assert (found.word, found.leans) == ("not decided", "worse than the margin")


def test_sentences():
    def text(values, **options):
        return verdict_of(estimate(values), **options).text

    assert text(NOISE) == (
        "Lossless: +0.00 (−0.25 to +0.25) against full data, within the margin of 0.5."
    )
    assert text(-0.2 + NOISE / 2).endswith("; a little worse, but by less than the margin.")
    assert text(-1 + NOISE) == (
        "Worse than the margin of 0.5: −1.00 (−1.25 to −0.75) against full data."
    )
    assert text(-0.4 + NOISE) == (
        "Worse, perhaps within the margin of 0.5: −0.40 (−0.65 to −0.15) against full data. "
        "It leans towards lossless; deciding would take about 3 to 13 more seeds."
    )
    assert text([0.1]) == (
        "Not decided: +0.10 against full data, margin 0.5. "
        "It leans towards lossless; deciding would take about 2 to 4 more seeds."
    )


def test_an_arm_that_diverged():
    both = verdict_of(None, diverged=(1, 4))
    assert both.word == "worse than the margin"
    assert both.text == "Diverged with seeds 1, 4."
    assert verdict_of(None, diverged=(1,)).text.endswith("with seed 1.")
    assert verdict_of(None).text == "Not decided: there is no seed in common yet."


@pytest.mark.parametrize("mean", [0.0, -9.0])
def test_two_seeds_decide_nothing_however_alike(mean):
    assert verdict_of(estimate([mean, mean])).word == "not decided"
    assert verdict_of(estimate([mean, mean, mean])).word != "not decided"


def test_error_at_the_margin():
    generator = np.random.default_rng(3)
    count = 4000
    words = [
        verdict_of(estimate(values)).word for values in generator.normal(-0.5, 0.3, (count, 4))
    ]
    for word in ("lossless", "worse than the margin"):
        assert abs(words.count(word) / count - 0.025) < 4 * math.sqrt(0.025 * 0.975 / count)


@pytest.mark.parametrize("margin", [0, -1, math.nan, math.inf])
def test_margin(margin):
    with pytest.raises(ValueError, match="expected a number above zero"):
        verdict_of(estimate([0.0, 0.1, 0.2]), margin=margin)


# On paired runs.


def verdicts_on(*groups):
    runs = paired(*groups)
    return verdicts(runs, frontier(runs), margin=0.5)


def test_a_verdict_that_changed_as_seeds_were_added_says_so():
    full = runs_of("full", {1.0: [90.0] * 6})
    one_bad = [88.0, 89.9, 90.0, 89.95, 90.0, 90.05]  # one bad seed, then good ones
    (found,) = verdicts_on(full, runs_of("mean", {1.0: one_bad}, cost=70))
    assert (found.word, found.earlier) == ("not decided", ())
    good = [89.45, *(90.0 - 0.001 * seed for seed in range(1, 6))]
    (found,) = verdicts_on(full, runs_of("mean", {1.0: good}, cost=70))
    assert (found.word, found.earlier) == ("lossless", (Earlier(4, "not decided"),))


def test_the_words_on_fewer_seeds_are_on_the_seeds_of_the_verdict():
    """Seeds 3 and 4 lack half the length on all data, so nothing is said of an arm on them."""
    full = runs_of("full", {0.5: [88.0, 88.1, 88.2], 1.0: [90.0] * 5})
    mean = runs_of("mean", {1.0: [90.0, 90.01, 89.99, 85.0, 90.0]}, cost=70)
    (found,) = verdicts_on(full, mean)
    assert (found.word, found.earlier) == ("lossless", ())
    without_the_second = [run for run in mean if run.seed != 1]
    full = runs_of("full", {1.0: [90.0] * 5})
    (found,) = verdicts_on(full, without_the_second)
    assert found.word == "not decided"
    assert found.earlier == (), "the first three of its seeds are 0, 2 and 3, and not decided, too"


def test_the_words_on_fewer_seeds_count_the_runs_that_diverged():
    def earlier(qualities):
        full = runs_of("full", {1.0: [90.0] * len(qualities)})
        (found,) = verdicts_on(full, runs_of("mean", {1.0: qualities}, cost=70))
        assert found.word == "worse than the margin"
        return found.earlier

    assert earlier([90.0, None, 90.01, 89.99, 90.0]) == (), "diverged within the first three"
    assert earlier([90.0, 90.01, 89.99, 90.0, None]) == (Earlier(4, "lossless"),)


def test_random_pruning_is_compared_with_on_the_paired_seeds():
    """If one of the two diverged on a paired seed, there is no difference."""
    full = runs_of("full", {0.5: [80.0] * 3, 1.0: [90.0] * 4})
    mean = runs_of("mean", {1.0: [90.0] * 4}, cost=70)
    random = [89.0, 90.0, 91.0, 92.0]
    found, control = verdicts_on(full, mean, runs_of("random", {1.0: random}, cost=70))
    assert (found.to_random.count, found.to_random.mean) == (3, 0.0), "not on seed 3"
    assert control.to_random is None
    random[1] = None
    found, _ = verdicts_on(full, mean, runs_of("random", {1.0: random}, cost=70))
    assert found.to_random is None


# The regime gate.


def gate_of(qualities, margin=0.5, higher_is_better=True):
    runs = paired(runs_of("full", qualities), higher_is_better=higher_is_better)
    return regime_gate(runs, margin=margin)


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
def test_margin_of_the_gate(margin):
    with pytest.raises(ValueError, match=r"margin is .*, expected a number above zero"):
        gate_of({1.0: [90]}, margin)


def test_a_true_loss_of_the_margin_is_called_too_long_in_at_most_one_of_forty():
    generator = np.random.default_rng(0)
    count = 2000
    half = generator.normal(89.5, 0.2, (count, 4))
    regimes = [gate_of({0.5: qualities, 1.0: [90] * 4}).regime for qualities in half]
    wrong = regimes.count("too long") / count
    assert abs(wrong - 0.025) < 4 * math.sqrt(0.025 * 0.975 / count)
