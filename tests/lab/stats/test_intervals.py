"""Means with their intervals, the range of more seeds, the error of a test set, and repeated looks."""

import math

import numpy as np
import pytest
from scipy import stats

from infobatch.lab.stats.intervals import (
    ERROR_WITHOUT_DESIGN,
    Estimate,
    SeedRange,
    SequentialDesign,
    binomial_standard_error,
    estimate,
    more_seeds,
)
from infobatch.lab.stats.verdict import word_for

NOISE = np.array([-0.1, 0.0, 0.1])  # 95% interval: -+0.2484
DECIDED = ("lossless", "worse than the margin")


def test_estimate_by_hand():
    difference = estimate([-0.1, 0.1, 0.3])
    assert difference == Estimate(
        3, pytest.approx(0.1), pytest.approx(0.2),
        pytest.approx(-0.396828, abs=1e-6), pytest.approx(0.596828, abs=1e-6), 0.95,
    )  # fmt: skip
    for bad in ([], [1.0, math.nan]):
        with pytest.raises(ValueError, match="expected at least one value, all finite"):
            estimate(bad)


def test_a_difference_in_words():
    assert estimate(NOISE - 1).in_words(2) == "−1.00 (−1.25 to −0.75)"
    assert estimate([0.123]).in_words(1, unit="points") == "+0.1 points"


def test_more_seeds_by_hand():
    # Three seeds, sd 0.1: a chi-square with 2 degrees of freedom has the quartiles 2 ln(4/3) =
    # 0.575364 and 2 ln 4 = 2.772589, so the deviation is from 0.084932 to 0.186443. Half the
    # interval of n seeds is t(0.975, n-1) * sd / sqrt(n); for 0.084932 it falls below 0.1 with six
    # seeds (0.0891; five: 0.1055), for 0.186443 with 16 (0.0993; fifteen: 0.1032).
    assert more_seeds(estimate(-0.4 + NOISE), limit=-0.5) == SeedRange(3, 13)


def test_more_seeds_is_at_least_one_and_makes_three():
    assert more_seeds(estimate([0.0, 0.0]), limit=-0.5) == SeedRange(1, 1)
    assert more_seeds(estimate([0.3]), limit=-0.5) == SeedRange(2, 4)


def test_more_seeds_depends_on_the_confidence():
    usual, strict = (
        more_seeds(estimate(NOISE, confidence=confidence), limit=-0.1)
        for confidence in (0.95, 0.99)
    )
    assert usual.low < strict.low
    assert usual.high < strict.high


def test_far_too_many_seeds():
    assert more_seeds(estimate(-0.5 + NOISE), limit=-0.5) == SeedRange(1000, None)
    seeds = more_seeds(estimate(-0.49 + NOISE), limit=-0.5)
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


# Repeated looks.


def ever_above(differences, confidence, margin):
    """Whether the lower end of some look's t interval clears the margin; one row per comparison."""
    above = np.zeros(len(differences), dtype=bool)
    for count in range(3, differences.shape[1] + 1):
        seen = differences[:, :count]
        error = seen.std(axis=1, ddof=1) / math.sqrt(count)
        above |= seen.mean(axis=1) - stats.t.ppf((1 + confidence) / 2, count - 1) * error > -margin
    return above


@pytest.fixture(scope="module")
def at_the_margin():
    """Comparisons of an arm that is really worse by the margin of 0.5, with 20 seeds each."""
    return np.random.default_rng(7).normal(-0.5, 0.3, (40_000, 20))


def test_level_with_a_look_after_every_seed(at_the_margin):
    """Not above 2.5%, and not far below it, which would waste seeds."""
    wrong = ever_above(at_the_margin, SequentialDesign(most=20).confidence(), 0.5).mean()
    deviation = math.sqrt(0.025 * 0.975 / len(at_the_margin))
    assert 0.022 < wrong < 0.025 + 2 * deviation


def test_the_usual_interval_does_not_keep_the_level(at_the_margin):
    """With a look after every seed: the upper end of what a user is warned of."""
    assert ERROR_WITHOUT_DESIGN == "6–11%"
    assert 0.10 < ever_above(at_the_margin, 0.95, 0.5).mean() < 0.12


@pytest.mark.slow
@pytest.mark.parametrize(("end", "low", "high"), [("low", 0.08, 0.12), ("high", 0.045, 0.08)])
def test_following_the_advice_to_add_seeds_raises_the_error(end, low, high):
    """As many more as the range says, at one of its ends, until there is a verdict or no advice."""
    generator, count, wrong = np.random.default_rng(0), 1500, 0
    for _ in range(count):
        seen = list(generator.normal(-0.5, 0.3, 3))
        difference = estimate(seen)
        while word_for(difference, 0.5) not in DECIDED and len(seen) < 60:
            more = getattr(more_seeds(difference, limit=-0.5), end)
            if more is None:
                break
            seen += list(generator.normal(-0.5, 0.3, min(more, 60 - len(seen))))
            difference = estimate(seen)
        wrong += word_for(difference, 0.5) == "lossless"
    assert low < wrong / count < high


def test_fewer_looks_are_safer(at_the_margin):
    confidence = SequentialDesign(most=20).confidence()
    assert ever_above(at_the_margin[:, :8], confidence, 0.5).mean() < 0.02


def test_a_stricter_level_for_several_arms(at_the_margin):
    wrong = ever_above(
        at_the_margin, SequentialDesign(most=20).confidence(1 - 0.05 / 5), 0.5
    ).mean()
    assert wrong < 0.005 + 3 * math.sqrt(0.005 / len(at_the_margin))


def test_one_look_is_the_usual_interval():
    # Up to the two standard errors of the simulation that are on the safe side.
    assert SequentialDesign(first=5, most=5).confidence() == pytest.approx(0.95, abs=0.003)


def test_more_looks_are_stricter():
    confidences = [SequentialDesign(most=most).confidence() for most in (3, 5, 10, 20)]
    assert confidences == sorted(confidences)


def test_a_design_makes_an_interval_wider():
    confidence = SequentialDesign(most=20).confidence()
    differences = [0.0, 0.05, -0.05]  # half: 0.124 at 95%, 0.33 at 99.25%
    strict = estimate(differences, confidence=confidence)
    assert strict.high == pytest.approx(stats.t.ppf((1 + confidence) / 2, 2) * 0.05 / math.sqrt(3))
    assert word_for(strict, 0.2) == "not decided"
    assert word_for(estimate(differences), 0.2) == "lossless"


def test_error_texts():
    with pytest.raises(ValueError, match=r"There are 21 seeds, but .* declared for at most 20"):
        SequentialDesign(most=20).check(21)
    SequentialDesign(most=20).check(20)
    with pytest.raises(ValueError, match="got first=3, most=2; expected 3 <= first <= most"):
        SequentialDesign(most=2)
    with pytest.raises(ValueError, match="got first=2, most=9"):
        SequentialDesign(first=2, most=9)
    with pytest.raises(ValueError, match="overall is 95, expected a share"):
        SequentialDesign(most=9).confidence(95)
