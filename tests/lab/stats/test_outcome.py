"""Verdict words, the range of more seeds, and the error of a test set."""

import math

import numpy as np
import pytest

from infobatch.lab.stats.contrast import Contrast, contrast
from infobatch.lab.stats.outcome import outcome
from infobatch.lab.stats.precision import SeedRange, binomial_standard_error, more_seeds

NOISE = np.array([-0.1, 0.0, 0.1])  # 95% interval: -+0.2484


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
    verdict = outcome(contrast(mean + NOISE), margin=0.5)
    assert (verdict.word, verdict.leans) == (word, leans)
    assert (verdict.more_seeds is None) == (leans is None)


def test_not_decided_leans():
    verdict = outcome(contrast(-0.3 + 3 * NOISE), margin=0.5)  # -1.05 to 0.45
    assert (verdict.word, verdict.leans) == ("not decided", "lossless")
    verdict = outcome(contrast(-0.6 + 3 * NOISE), margin=0.5)
    assert (verdict.word, verdict.leans) == ("not decided", "worse than the margin")


def test_sentences():
    def text(values, **options):
        return outcome(contrast(values), margin=0.5, **options).text

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
    verdict = outcome(None, margin=0.5, diverged=[1, 4])
    assert verdict.word == "worse than the margin"
    assert verdict.text == "Diverged with seeds 1, 4."
    assert outcome(None, margin=0.5, diverged=[1]).text.endswith("with seed 1.")
    assert outcome(None, margin=0.5).text == "Not decided: there is no seed in common yet."


@pytest.mark.parametrize("mean", [0.0, -9.0])
def test_two_seeds_decide_nothing_however_alike(mean):
    assert outcome(contrast([mean, mean]), margin=0.5).word == "not decided"
    assert outcome(contrast([mean, mean, mean]), margin=0.5).word != "not decided"


def test_error_at_the_margin():
    generator = np.random.default_rng(3)
    count = 4000
    words = [
        outcome(contrast(values), margin=0.5).word
        for values in generator.normal(-0.5, 0.3, (count, 4))
    ]
    for word in ("lossless", "worse than the margin"):
        assert abs(words.count(word) / count - 0.025) < 4 * math.sqrt(0.025 * 0.975 / count)


def test_more_seeds_by_hand():
    # Three seeds, sd 0.1: a chi-square with 2 degrees of freedom has the quartiles 2 ln(4/3) =
    # 0.575364 and 2 ln 4 = 2.772589, so the deviation is from 0.084932 to 0.186443. Half the
    # interval of n seeds is t(0.975, n-1) * sd / sqrt(n); for 0.084932 it falls below 0.1 with six
    # seeds (0.0891; five: 0.1055), for 0.186443 with 16 (0.0993; fifteen: 0.1032).
    assert more_seeds(contrast(-0.4 + NOISE), limit=-0.5) == SeedRange(3, 13)


def test_more_seeds_is_at_least_one_and_makes_three():
    assert more_seeds(contrast([0.0, 0.0]), limit=-0.5) == SeedRange(1, 1)
    assert more_seeds(contrast([0.3]), limit=-0.5) == SeedRange(2, 4)


def test_more_seeds_depends_on_the_confidence():
    usual, strict = (
        more_seeds(contrast(NOISE, confidence=confidence), limit=-0.1)
        for confidence in (0.95, 0.99)
    )
    assert usual.low < strict.low
    assert usual.high < strict.high


def test_far_too_many_seeds():
    assert more_seeds(contrast(-0.5 + NOISE), limit=-0.5) == SeedRange(1000, None)
    seeds = more_seeds(contrast(-0.49 + NOISE), limit=-0.5)
    assert seeds.low < 1000
    assert seeds.high is None


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        (SeedRange(1, 1), "about 1 more seed"),
        (SeedRange(4, 4), "about 4 more seeds"),
        (SeedRange(4, 12), "about 4 to 12 more seeds"),
        (SeedRange(280, None), "280 or many more seeds"),
        (SeedRange(1000, None), "more than 1,000 more seeds"),
    ],
)
def test_seed_ranges_in_words(seeds, text):
    assert seeds.text == text


def test_binomial_standard_error():
    assert binomial_standard_error(90.0, 10_000) == pytest.approx(0.3)
    assert binomial_standard_error(100.0, 10) == 0
    with pytest.raises(ValueError, match="items is 0, expected at least one"):
        binomial_standard_error(90.0, 0)
    with pytest.raises(ValueError, match="percentage is 101, expected a number from 0 to 100"):
        binomial_standard_error(101, 10)


def test_contrast_by_hand():
    difference = contrast([-0.1, 0.1, 0.3])
    assert difference == Contrast(
        3, pytest.approx(0.1), pytest.approx(0.2),
        pytest.approx(-0.396828, abs=1e-6), pytest.approx(0.596828, abs=1e-6), 0.95,
    )  # fmt: skip
    for bad in ([], [1.0, math.nan]):
        with pytest.raises(ValueError, match="expected at least one difference, all finite"):
            contrast(bad)


@pytest.mark.parametrize("margin", [0, -1, math.nan, math.inf])
def test_margin(margin):
    with pytest.raises(ValueError, match="expected a number above zero"):
        outcome(contrast([0.0, 0.1, 0.2]), margin=margin)
