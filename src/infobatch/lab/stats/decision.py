"""One decision from all measurements: use an arm, train for less, or keep all data.

"Use" requires an arm that is above full data's curve: full data needs more compute to be as good.
If it is also as good as full data at full length, that is all there is to say. If it is not, or not
certainly, it is still better than shorter training, and the sentence says what is open or lost.

Several arms and lengths are compared, and the best of several is partly the luckiest. "Use"
therefore requires intervals that hold for all of them at once (Bonferroni: the remaining 5% are
divided among them): of all comparisons in which no arm is worth using, at most 2.5% begin with that
word, and of those in which none is lossless, at most 2.5% call the arm as good as full data. The
same bound holds for both errors together: a given arm and length can make only one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infobatch.lab.stats.candidate import Candidate, candidates
from infobatch.lab.stats.frontier import Frontier
from infobatch.lab.stats.gate import Gate
from infobatch.lab.stats.precision import SeedRange, more_seeds
from infobatch.lab.stats.sentences import Sentences, Wording

Kind = Literal[
    "use",
    "use instead of shorter training",
    "train shorter",
    "shorten first",
    "keep full data",
    "not decided",
]


@dataclass(frozen=True)
class Decision:
    """What to do, in one word and one or two sentences, and for which arm and length.

    While something is undecided, ``leans`` says which way it leans, and ``more_seeds`` roughly how
    many seeds would decide it: for an arm to use instead of shorter training, whether it is as good
    as full data.
    """

    kind: Kind
    sentence: str
    arm: str | None = None
    length: float | None = None
    leans: Kind | None = None
    more_seeds: SeedRange | None = None


def decide(
    frontier: Frontier, gate: Gate, *, margin: float, wording: Wording | None = None
) -> Decision:
    """Decide, from a frontier whose intervals hold for all of its points at once.

    :func:`infobatch.lab.stats.assessment.assess` makes such a frontier from the measurements.
    """
    if not frontier.points:  # full data alone: is training longer than it needs to be?
        return Decision("shorten first" if gate.regime == "too long" else "not decided", gate.text)
    if not any(point.seeds for point in frontier.points):
        sentence = (
            "Not decided: no seed has finished on full data at every length and in another arm."
        )
        return Decision("not decided", sentence)
    if gate.regime == "too long":
        return Decision("shorten first", gate.text)
    return _judged(frontier, gate, margin=margin, wording=wording or Wording())


def _judged(frontier: Frontier, gate: Gate, *, margin: float, wording: Wording) -> Decision:
    """Decide if there is something to judge, and training is not known to be too long."""
    measured = [point for point in frontier.points if point.seeds]
    longest = max(knot.length for knot in frontier.curve)
    sentences = Sentences(margin, longest, wording)
    judged = candidates(measured, margin=margin)
    lossless = [candidate for candidate in judged if candidate.lossless]
    useful = [candidate for candidate in lossless if candidate.above_curve]
    if useful:
        best = max(useful, key=lambda candidate: candidate.saving.low or 0.0)
        reach = next(reach for reach in frontier.reaches if reach.arm == best.point.arm)
        return _about(best, "use", sentences.use(best, reach.saving, gate))
    beaten = [
        candidate
        for candidate in lossless
        if candidate.under_curve and candidate.shorter_length < longest
    ]
    if beaten:
        best = max(beaten, key=lambda candidate: candidate.saved)
        return _about(best, "train shorter", sentences.train_shorter(best))
    undecided = [
        candidate for candidate in judged if not (candidate.worse or candidate.under_curve)
    ]
    above = [candidate for candidate in judged if candidate.above_curve]
    if undecided:
        return _undecided(undecided, above, gate, sentences)
    if above:
        best = max(above, key=_quality)
        sentence = f"{sentences.instead(best, gate)} {sentences.not_as_good(best)}"
        return _about(best, "use instead of shorter training", sentence)
    nearest = max(judged, key=_quality, default=None)
    diverged = any(point.diverged for point in measured)
    return Decision("keep full data", sentences.keep(nearest, diverged=diverged))


def _undecided(
    undecided: Sequence[Candidate], above: Sequence[Candidate], gate: Gate, sentences: Sentences
) -> Decision:
    """Report the most promising candidate: the largest saving of those that may be lossless.

    One that is certainly above the curve comes first. Certain facts come before open questions.
    """
    near = [candidate for candidate in undecided if candidate.to_full.mean > -candidate.margin]
    leans: Kind = "keep full data"
    if near:
        best = max(near, key=lambda candidate: (candidate.above_curve, candidate.saving.estimate))
        leans = "use" if best.to_shorter.mean > 0 else "train shorter"
    else:
        best = max(undecided, key=_quality)
    more = _seeds_needed(best, near=bool(near))
    if not best.enough_seeds:
        return _about(best, "not decided", sentences.few_seeds(best, gate), leans, more)
    if best.above_curve:
        sentence = sentences.instead(best, gate)
        sentence += f" {sentences.perhaps_as_good(best, more, likely=leans == 'use')}"
        return _about(best, "use instead of shorter training", sentence, leans, more)
    words = {"use": "using it", "train shorter": "shorter training"}
    sentence = sentences.not_decided(best, words.get(leans, "keeping all data"), more)
    if above:
        used = max(above, key=_quality)
        sentence = f"{sentences.instead(used, gate)} {sentence}"
        return _about(used, "use instead of shorter training", sentence, leans, more)
    return _about(best, "not decided", sentence, leans, more)


def _quality(candidate: Candidate) -> float:
    return candidate.to_full.mean


def _seeds_needed(best: Candidate, *, near: bool) -> SeedRange:
    """The seeds to settle all open questions: whether it is lossless, and better than shorter."""
    needed = []
    if not best.lossless:
        needed.append(more_seeds(best.to_full, limit=-best.margin))
    if near and not best.above_curve:
        needed.append(more_seeds(best.to_shorter, limit=0.0))
    highs = [candidate.high for candidate in needed if candidate.high is not None]
    high = max(highs) if len(highs) == len(needed) else None
    return SeedRange(max(candidate.low for candidate in needed), high)


def _about(
    best: Candidate,
    kind: Kind,
    sentence: str,
    leans: Kind | None = None,
    more: SeedRange | None = None,
) -> Decision:
    return Decision(kind, sentence, best.point.arm, best.point.length, leans, more)
