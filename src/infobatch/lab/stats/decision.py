"""All conclusions of a comparison: a verdict for each arm and length, and one decision.

The terminal, results.json and the page only show these conclusions. The decision is to use an arm,
to train for less, or to keep all data.

"Use" requires an arm that is above full data's curve: full data needs more compute to be as good.
If it is also as good as full data at full length, that is all there is to say. If it is not, or not
certainly, it is still better than shorter training, and the sentence says what is open or lost.

Whether an arm is above the curve is judged by all of its lengths from 0.6 to 1 together, if it has
several: the pooled saving is about twice as precise as that of one length
(``benchmarks/evidence/decisions.py``).

Several arms and lengths are compared, and the best of several is partly the luckiest. "Use"
therefore requires intervals that hold for all of them at once (Bonferroni: the remaining 5% are
divided among all pairs of arm and length; for pooled savings, half of it among the arms): of all
comparisons in which no arm is worth using, at most 2.5% begin with that word, and of those in which
none is lossless, at most 2.5% call the arm as good as full data. The same bound holds
for both errors together: an arm that is not above the curve can make only the first, with its share
of the error, and one that is above it only the second, with the shares of its lengths, which add up
to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from infobatch.lab.stats.frontier import Frontier, frontier, pooled_savings
from infobatch.lab.stats.intervals import CONFIDENCE, SeedRange, SequentialDesign, more_seeds
from infobatch.lab.stats.pairing import PairedRuns, measurements
from infobatch.lab.stats.runs import FULL, RANDOM, Question, Record, Seconds, seconds_to_compare
from infobatch.lab.stats.sentences import Candidate, Sentences, candidates
from infobatch.lab.stats.verdict import Gate, Verdict, regime_gate, verdicts

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


@dataclass(frozen=True)
class Conclusions:
    """All conclusions of a comparison; empty until a run on all data is finished.

    ``frontier`` has a separate interval for each point, for tables and figures, and ``verdicts`` a
    verdict for each of its points, in the same order. ``level`` is a sentence on what the intervals
    cover and how often a "use" is wrong. ``frontier_by_seconds`` is the frontier with time as cost,
    and ``compared_seconds`` says which time; both are None if times cannot be compared.
    """

    decision: Decision | None = None
    gate: Gate | None = None
    level: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    frontier: Frontier | None = None
    frontier_by_seconds: Frontier | None = None
    compared_seconds: Seconds | None = None


def conclude(records: Sequence[Record], question: Question) -> Conclusions:
    """Draw all conclusions from the records of the finished runs."""
    if not any(record.arm == FULL for record in records):
        return Conclusions()
    better = question.higher_is_better
    passes = PairedRuns(measurements(records, cost="samples_forwarded"), higher_is_better=better)
    leader = next((record.leader for record in records if record.arm == RANDOM), None)
    conclusions = conclude_from(passes, question, random_leader=leader)
    seconds = seconds_to_compare(records)
    if seconds is None or conclusions.frontier is None:
        return conclusions
    timed = PairedRuns(measurements(records, cost=seconds), higher_is_better=better)
    return replace(
        conclusions,
        frontier_by_seconds=frontier(timed, confidence=conclusions.frontier.confidence),
        compared_seconds=seconds,
    )


def conclude_from(
    runs: PairedRuns, question: Question, *, random_leader: str | None = None
) -> Conclusions:
    """Draw the conclusions that rest on one kind of cost.

    Random pruning is a control: it is shown but never recommended, and takes no share of the error.
    """
    design = SequentialDesign(question.most_seeds) if question.most_seeds is not None else None
    if design:
        design.check(len(runs.seeds))
    confidence = design.confidence() if design else CONFIDENCE
    separate = frontier(runs, confidence=confidence)
    count = sum(not _is_control(point.arm) for point in separate.points)
    arms = sum(not _is_control(reach.arm) for reach in separate.reaches)
    shared = shared_confidence(count, design)
    by_arms = shared_confidence(arms, design, pooled=True)
    simultaneous = frontier(runs, confidence=shared)
    pooled = pooled_savings(runs, confidence=by_arms)
    simultaneous = replace(
        simultaneous,
        points=tuple(point for point in simultaneous.points if not _is_control(point.arm)),
        reaches=tuple(reach for reach in simultaneous.reaches if not _is_control(reach.arm)),
        pooled=tuple(row for row in pooled if not _is_control(row.arm)),
    )
    gate = regime_gate(runs, margin=question.margin, confidence=confidence)
    return Conclusions(
        decision=decide(simultaneous, gate, question),
        gate=gate,
        level=_level(simultaneous, by_arms, design),
        verdicts=verdicts(runs, separate, margin=question.margin, random_leader=random_leader),
        frontier=separate,
    )


def _is_control(arm: str) -> bool:
    return arm.partition(":")[0] == RANDOM


def shared_confidence(
    among: int, design: SequentialDesign | None = None, *, pooled: bool = False
) -> float:
    """The confidence of each of several intervals that hold together (at all looks, too).

    Pooled savings get half of the error: between two lengths full data's curve is taken for a straight
    line, below the true one, so that their intervals are a little too high. With all of the error they
    said "Use" in up to 4.5% of simulated comparisons in which no arm saves anything
    (``benchmarks/evidence/decisions.py``).
    """
    error = (1 - CONFIDENCE) / (2 if pooled else 1)
    overall = 1 - error / max(among, 1)
    return design.confidence(overall) if design else overall


def _level(frontier: Frontier, by_arms: float, design: SequentialDesign | None) -> str:
    count, arms = len(frontier.points), len(frontier.reaches)
    pooled = any(len(row.lengths) > 1 and not row.below_curve for row in frontier.pooled)
    error = 100 * (1 - CONFIDENCE) / 2
    sentences = f"If no arm is worth using, the decision is “Use” in at most {error:g}% of all "
    sentences += "comparisons"
    sentences += f", at all looks with up to {design.most} seeds together. " if design else ". "
    if count > 1:
        sentences += f"The {count} pairs of arm and length share that error, so intervals in the "
        sentences += f"decision are {_percent(frontier.confidence)} intervals, wider than those of each pair by "
        sentences += "itself elsewhere. "
    if pooled:
        among = (
            f"the {arms} arms share half of the error" if arms > 1 else "half of the error is used"
        )
        sentences += f"For savings from several lengths together {among}: {_percent(by_arms)}. "
    return sentences + "Intervals are over seeds, not over test items."


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.4g}%"


# The decision.


def decide(frontier: Frontier, gate: Gate, question: Question) -> Decision:
    """Decide, from a frontier whose intervals hold for all of its points at once."""
    if not frontier.points:  # full data alone: is training longer than it needs to be?
        return Decision("shorten first" if gate.regime == "too long" else "not decided", gate.text)
    if not any(point.seeds for point in frontier.points):
        sentence = (
            "Not decided: no seed has finished on full data at every length and in another arm."
        )
        return Decision("not decided", sentence)
    if gate.regime == "too long":
        return Decision("shorten first", gate.text)
    return _decide_among(frontier, gate, question)


def _decide_among(frontier: Frontier, gate: Gate, question: Question) -> Decision:
    """Decide among the arms, if any was measured and training is not known to be too long."""
    measured = [point for point in frontier.points if point.seeds]
    full_length = frontier.full_length
    sentences = Sentences(question, full_length)
    compared = candidates(measured, margin=question.margin, pooled=frontier.pooled)
    lossless = [candidate for candidate in compared if candidate.lossless]
    useful = [candidate for candidate in lossless if candidate.above_curve]
    if useful:
        best = max(useful, key=lambda candidate: candidate.arms_saving.low or 0.0)
        reach = next(reach for reach in frontier.reaches if reach.arm == best.point.arm)
        return _about(best, "use", sentences.use(best, reach.saving, gate))
    beaten = [
        candidate
        for candidate in lossless
        if candidate.under_curve and candidate.shorter_length < full_length
    ]
    if beaten:
        best = max(beaten, key=lambda candidate: candidate.saved)
        return _about(best, "train shorter", sentences.train_shorter(best))
    undecided = [
        candidate for candidate in compared if not (candidate.worse or candidate.under_curve)
    ]
    above = [candidate for candidate in compared if candidate.above_curve]
    if undecided:
        return _undecided(undecided, above, gate, sentences)
    if above:
        best = max(above, key=_preference)
        sentence = f"{sentences.instead(best, gate)} {sentences.not_as_good(best)}"
        return _about(best, "use instead of shorter training", sentence)
    nearest = max(compared, key=_quality, default=None)
    diverged = any(point.diverged for point in measured)
    return Decision("keep full data", sentences.keep(nearest, diverged=diverged))


def _undecided(
    undecided: Sequence[Candidate], above: Sequence[Candidate], gate: Gate, sentences: Sentences
) -> Decision:
    """Report the most promising candidate: the largest saving of those that may be lossless.

    One that is certainly above the curve comes first. Certain facts come before open questions.
    """
    pooled = [candidate for candidate in above if candidate.is_pooled]
    if pooled:  # an arm is known to save something: nothing that is open of others matters more
        return _above_by_all_lengths(max(pooled, key=_preference), gate, sentences)
    near = [candidate for candidate in undecided if candidate.to_full.mean > -candidate.margin]
    leans: Kind = "keep full data"
    if near:
        best = max(
            near,
            key=lambda candidate: (
                candidate.above_curve,
                candidate.arms_saving.estimate,
                candidate.point.length,
            ),
        )
        leans = "use" if best.against_shorter.mean > 0 else "train shorter"
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


def _above_by_all_lengths(best: Candidate, gate: Gate, sentences: Sentences) -> Decision:
    """Use an arm that saves something at equal quality, and say whether it is as good as full data."""
    kind: Kind = "use instead of shorter training"
    sentence = sentences.instead(best, gate)
    if best.worse:
        return _about(best, kind, f"{sentence} {sentences.not_as_good(best)}")
    likely = best.to_full.mean > -best.margin
    more = _seeds_needed(best, near=True)
    sentence += f" {sentences.perhaps_as_good(best, more, likely=likely)}"
    return _about(best, kind, sentence, "use" if likely else "keep full data", more)


def _preference(candidate: Candidate) -> tuple[bool, float]:
    """An arm that is judged by several lengths comes first, then the best quality."""
    return candidate.is_pooled, _quality(candidate)


def _quality(candidate: Candidate) -> float:
    return candidate.to_full.mean


def _seeds_needed(best: Candidate, *, near: bool) -> SeedRange:
    """The seeds to settle all open questions: whether it is lossless, and better than shorter."""
    needed = []
    if not best.lossless:
        needed.append(more_seeds(best.to_full, limit=-best.margin))
    if near and not best.above_curve:
        needed.append(more_seeds(best.against_shorter, limit=0.0))
    highs = [seeds.high for seeds in needed if seeds.high is not None]
    high = max(highs) if len(highs) == len(needed) else None
    return SeedRange(max(seeds.low for seeds in needed), high)


def _about(
    best: Candidate,
    kind: Kind,
    sentence: str,
    leans: Kind | None = None,
    more: SeedRange | None = None,
) -> Decision:
    return Decision(kind, sentence, best.point.arm, best.point.length, leans, more)
