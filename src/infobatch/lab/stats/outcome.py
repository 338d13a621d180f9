"""The verdict on a difference from full data, one of four words, for a given margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infobatch.lab.stats.contrast import FEWEST_SEEDS, Contrast
from infobatch.lab.stats.precision import SeedRange, more_seeds

Word = Literal[
    "lossless", "worse than the margin", "worse, perhaps within the margin", "not decided"
]
Lean = Literal["lossless", "worse than the margin"]


@dataclass(frozen=True)
class Outcome:
    """One of four words for an arm, with the sentence that explains it.

    While more seeds may settle whether the loss is within the margin, ``leans`` says which way it
    leans and ``more_seeds`` roughly how many are needed.
    """

    word: Word
    leans: Lean | None
    more_seeds: SeedRange | None
    text: str


def outcome(difference: Contrast | None, *, margin: float, diverged: Sequence[int] = ()) -> Outcome:
    """Judge ``arm - full``, in units of the metric, signed so that higher is better.

    Each side of the interval has half of the error: at 95% confidence, an arm that is really worse
    by the margin is called lossless in at most 2.5% of all comparisons.
    """
    if diverged:
        noun = "seed" if len(diverged) == 1 else "seeds"
        named = f"{noun} {', '.join(map(str, diverged))}"
        sentence = f"Diverged with {named}."
        return Outcome("worse than the margin", None, None, sentence)
    if difference is None:
        return Outcome("not decided", None, None, "Not decided: there is no seed in common yet.")
    word = _word(difference, margin)
    measured = f"{described(difference, margin)} against full data"
    if word == "lossless":
        sentence = f"Lossless: {measured}, within the margin of {margin:g}"
        a_little_worse = difference.high is not None and difference.high < 0
        sentence += "; a little worse, but by less than the margin." if a_little_worse else "."
        return Outcome(word, None, None, sentence)
    if word == "worse than the margin":
        return Outcome(word, None, None, f"Worse than the margin of {margin:g}: {measured}.")
    leans: Lean = "lossless" if difference.mean > -margin else "worse than the margin"
    more = more_seeds(difference, limit=-margin)
    leaning = f"It leans towards {leans}; deciding would take {more.text}."
    if word == "not decided":
        return Outcome(word, leans, more, f"Not decided: {measured}, margin {margin:g}. {leaning}")
    sentence = f"Worse, perhaps within the margin of {margin:g}: {measured}. {leaning}"
    return Outcome(word, leans, more, sentence)


def _word(difference: Contrast, margin: float) -> Word:
    if difference.low is None or difference.high is None or difference.count < FEWEST_SEEDS:
        return "not decided"
    if difference.low > -margin:
        return "lossless"
    if difference.high < -margin:
        return "worse than the margin"
    return "worse, perhaps within the margin" if difference.high < 0 else "not decided"


def described(difference: Contrast, margin: float, *, unit: str = "") -> str:
    """A difference with its interval: ``−0.12 (−0.40 to +0.16)``; with one seed, without."""
    digits = decimals(margin)
    mean = signed(difference.mean, digits)
    sentence = f"{mean} {unit}".rstrip()
    if difference.low is not None and difference.high is not None:
        sentence += f" ({signed(difference.low, digits)} to {signed(difference.high, digits)})"
    return sentence


def signed(value: float, digits: int) -> str:
    """A number with its sign, using a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def decimals(margin: float) -> int:
    """How many decimals a metric needs if differences of this margin matter."""
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin is {margin!r}, expected a number above zero.")
    return max(0, 2 - math.ceil(math.log10(margin)))
