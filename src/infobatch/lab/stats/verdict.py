"""Verdicts: is an arm as good as full data, and is training longer than it needs to be?

The first is one of four words for a margin. The second is the regime gate: if training on all data
for half the epochs is as good as for all of them, every way of training less looks lossless, and
the comparison tests none of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from infobatch.lab.stats.curve import Curve
from infobatch.lab.stats.frontier import Frontier, Point
from infobatch.lab.stats.intervals import (
    CONFIDENCE,
    FEWEST_SEEDS,
    Array,
    Estimate,
    SeedRange,
    decimals,
    estimate,
    more_seeds,
)
from infobatch.lab.stats.pairing import PairedRuns
from infobatch.lab.stats.runs import RANDOM

Word = Literal[
    "lossless", "worse than the margin", "worse, perhaps within the margin", "not decided"
]
Lean = Literal["lossless", "worse than the margin"]


@dataclass(frozen=True)
class Earlier:
    """The word for the first seeds of a verdict, if it was different."""

    seeds: int
    word: Word


@dataclass(frozen=True)
class Verdict:
    """The verdict on one arm at one length: a word, with the sentence that explains it.

    While more seeds may settle whether the loss is within the margin, ``leans`` says which way it
    leans and ``more_seeds`` roughly how many are needed. ``to_random`` is the difference from random
    pruning of the same length, paired by seed, None if one of them diverged; ``random_leader`` is
    the arm whose cost that random pruning has. ``earlier`` has the words for the first three, four,
    … of the verdict's own seeds whenever they changed.
    """

    arm: str
    length: float
    word: Word
    text: str
    leans: Lean | None = None
    more_seeds: SeedRange | None = None
    to_random: Estimate | None = None
    random_leader: str | None = None
    earlier: tuple[Earlier, ...] = ()


def verdicts(
    runs: PairedRuns, frontier: Frontier, *, margin: float, random_leader: str | None = None
) -> tuple[Verdict, ...]:
    """A verdict for each point of the frontier of these runs, in the same order."""
    return tuple(
        verdict(
            point,
            margin=margin,
            to_random=_to_random(runs, point, frontier.confidence),
            random_leader=random_leader,
            earlier=_earlier(runs, point, margin=margin, confidence=frontier.confidence),
        )
        for point in frontier.points
    )


def verdict(
    point: Point,
    *,
    margin: float,
    to_random: Estimate | None = None,
    random_leader: str | None = None,
    earlier: tuple[Earlier, ...] = (),
) -> Verdict:
    """The verdict on a point of the frontier, by its difference from full data at full length.

    Each side of the interval has half of the error: at 95% confidence, an arm that is really worse
    by the margin is called lossless in at most 2.5% of all comparisons.
    """
    word: Word = "not decided"
    leans, more = None, None
    if point.diverged:
        word = "worse than the margin"
    elif point.to_full is not None:
        word = word_for(point.to_full, margin)
        if word not in ("lossless", "worse than the margin"):
            leans = _lean(point.to_full, margin)
            more = more_seeds(point.to_full, limit=-margin)
    return Verdict(
        arm=point.arm,
        length=point.length,
        word=word,
        text=_text(point, word, leans, more, margin),
        leans=leans,
        more_seeds=more,
        to_random=to_random,
        random_leader=random_leader,
        earlier=earlier,
    )


def word_for(difference: Estimate, margin: float) -> Word:
    """The word for a difference from full data, above zero if the arm is better."""
    if difference.low is None or difference.high is None or difference.count < FEWEST_SEEDS:
        return "not decided"
    if difference.low > -margin:
        return "lossless"
    if difference.high < -margin:
        return "worse than the margin"
    return "worse, perhaps within the margin" if difference.high < 0 else "not decided"


def _lean(difference: Estimate, margin: float) -> Lean:
    return "lossless" if difference.mean > -margin else "worse than the margin"


def _text(
    point: Point, word: Word, leans: Lean | None, more: SeedRange | None, margin: float
) -> str:
    digits = decimals(margin)
    if point.diverged:
        noun = "seed" if len(point.diverged) == 1 else "seeds"
        return f"Diverged with {noun} {', '.join(map(str, point.diverged))}."
    difference = point.to_full
    if difference is None:
        return "Not decided: there is no seed in common yet."
    measured = f"{difference.in_words(digits)} against full data"
    if word == "lossless":
        a_little_worse = difference.high is not None and difference.high < 0
        end = "; a little worse, but by less than the margin." if a_little_worse else "."
        return f"Lossless: {measured}, within the margin of {margin:g}{end}"
    if leans is None or more is None:
        return f"Worse than the margin of {margin:g}: {measured}."
    leaning = f"It leans towards {leans}; deciding would take {more.text}."
    if word == "not decided":
        return f"Not decided: {measured}, margin {margin:g}. {leaning}"
    return f"Worse, perhaps within the margin of {margin:g}: {measured}. {leaning}"


def _to_random(runs: PairedRuns, point: Point, confidence: float) -> Estimate | None:
    if point.arm == RANDOM:
        return None
    pairs = runs.pairs((point.arm, point.length), (RANDOM, point.length))
    if not pairs.seeds or pairs.diverged:
        return None
    return estimate(pairs.quality[0] - pairs.quality[1], confidence=confidence)


def _earlier(
    runs: PairedRuns, point: Point, *, margin: float, confidence: float
) -> tuple[Earlier, ...]:
    """The words for the first three, four, … seeds of a point, each if it differs from the next."""
    if not point.seeds:
        return ()
    differences = runs.pairs((point.arm, point.length)).to_full
    counts = range(FEWEST_SEEDS, len(differences) + 1)
    words = [_word_so_far(differences[:count], margin, confidence) for count in counts]
    return tuple(
        Earlier(count, word)
        for count, (word, later) in zip(counts, pairwise(words), strict=False)
        if word != later
    )


def _word_so_far(differences: Array, margin: float, confidence: float) -> Word:
    if np.isneginf(differences).any():
        return "worse than the margin"
    return word_for(estimate(differences, confidence=confidence), margin)


# The regime gate.

Regime = Literal["can tell", "too long", "unknown"]
HALF = 0.5


@dataclass(frozen=True)
class Gate:
    """Whether a share of the length loses less than the margin.

    ``loss`` is what full data loses at ``length`` times its full length, above zero if shorter
    is worse. ``length`` is a half, or the shortest available if all are longer.
    """

    regime: Regime
    length: float | None
    loss: Estimate | None
    margin: float
    text: str


def regime_gate(runs: PairedRuns, *, margin: float, confidence: float = CONFIDENCE) -> Gate:
    """Tell whether half the length is as good, interpolated on full data's curve if not run.

    The gate answers once the whole interval of the loss is on one side of the margin.
    """
    digits = decimals(margin)
    if len(runs.lengths) < 2 or not runs.seeds:
        text = "Whether training is longer than it needs to be is unknown: "
        text += "full data has not been trained for two lengths on a common seed."
        return Gate("unknown", None, None, margin, text)
    quality = runs.pairs().full_quality
    final = runs.lengths[runs.final]
    half = max(HALF * final, runs.lengths[0])
    # Over lengths, because a cost may have a fixed part; and as measured, because pooling half the
    # length with the full length would make them equal.
    curve = Curve(np.log(np.array(runs.lengths)), np.zeros_like(quality), quality)
    loss = estimate(quality[runs.final] - curve.at(math.log(half)), confidence=confidence)
    share = half / final
    regime = _regime(loss, margin, share)
    return Gate(regime, share, loss, margin, _gate_text(regime, loss, margin, share, digits))


def _regime(loss: Estimate, margin: float, share: float) -> Regime:
    if loss.low is None or loss.high is None or loss.count < FEWEST_SEEDS:
        return "unknown"
    if loss.low > margin:
        return "can tell"  # if the share is above one half, a half loses even more
    return "too long" if loss.high < margin and share <= HALF else "unknown"


def _gate_text(regime: Regime, loss: Estimate, margin: float, share: float, digits: int) -> str:
    if regime == "too long":
        return (
            f"Training is longer than it needs to be: all data for {share:g} × the epochs is as "
            "good. Shorten it first; this run cannot judge pruning."
        )
    verb = "gains" if loss.mean < 0 else "loses"
    sentence = f"full data for {share:g} × the epochs {verb} {abs(loss.mean):.{digits}f}"
    if loss.low is not None and loss.high is not None:
        sentence += f" ({loss.low:.{digits}f} to {loss.high:.{digits}f})".replace("-", "−")
    if regime == "can tell":
        return f"Training is not longer than it needs to be: {sentence}, more than the margin."
    why = f"the margin is {margin:g}"
    if loss.count < FEWEST_SEEDS:
        why += f" and it takes at least {FEWEST_SEEDS} seeds to tell"
    elif share > HALF:
        why += " and half the epochs have not been run"
    return f"Whether training is longer than it needs to be is not clear: {sentence}; {why}."
