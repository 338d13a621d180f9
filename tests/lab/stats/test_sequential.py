"""Looking again and again: the level by simulation, and what is declared."""

import math

import numpy as np
import pytest
from scipy import stats

from infobatch.lab.stats.contrast import contrast
from infobatch.lab.stats.outcome import outcome
from infobatch.lab.stats.sequential import ERROR_WITHOUT_DESIGN, SequentialDesign


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
        verdict = outcome(contrast(seen), margin=0.5)
        while verdict.more_seeds is not None and len(seen) < 60:
            more = getattr(verdict.more_seeds, end)
            if more is None:
                break
            seen += list(generator.normal(-0.5, 0.3, min(more, 60 - len(seen))))
            verdict = outcome(contrast(seen), margin=0.5)
        wrong += verdict.word == "lossless"
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


def test_judging_with_a_design():
    confidence = SequentialDesign(most=20).confidence()
    differences = [0.0, 0.05, -0.05]  # half: 0.124 at 95%, 0.33 at 99.25%
    judged = contrast(differences, confidence=confidence)
    assert judged.high == pytest.approx(stats.t.ppf((1 + confidence) / 2, 2) * 0.05 / math.sqrt(3))
    assert outcome(judged, margin=0.2).word == "not decided"
    assert outcome(contrast(differences), margin=0.2).word == "lossless"


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
