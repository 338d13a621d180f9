"""The only module that judges results: typed records in, all conclusions out.

The terminal, results.json and the page only show these conclusions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import pairwise
from typing import Any

from infobatch.lab.stats.assessment import Assessment, assess
from infobatch.lab.stats.contrast import FEWEST_SEEDS, Contrast, contrast
from infobatch.lab.stats.frontier import Frontier, frontier
from infobatch.lab.stats.outcome import Outcome, Word, outcome
from infobatch.lab.stats.records import (
    FULL,
    RANDOM,
    Record,
    Seconds,
    measurements,
    seconds_to_compare,
)
from infobatch.lab.stats.sentences import Wording
from infobatch.lab.stats.sequential import SequentialDesign

Cell = tuple[str, float]  # an arm at a length


@dataclass(frozen=True)
class Question:
    """What was fixed before the first run.

    ``settings`` has what was chosen for an arm, such as ``{"quantile": "learning rate 0.2"}``.
    ``most_seeds`` is set if seeds are added until there is a decision.
    """

    margin: float
    higher_is_better: bool
    unit: str = ""
    epochs: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    most_seeds: int | None = None


@dataclass(frozen=True)
class Earlier:
    """The verdict with fewer seeds, if it was different."""

    seeds: int
    word: Word


@dataclass(frozen=True)
class Verdict:
    """The verdict on one arm at one length.

    ``to_random`` is the difference from random pruning of the same length, paired by seed, and
    ``random_leader`` the arm whose cost that random pruning has. ``earlier`` has the verdicts on
    the first three, four, … seeds whenever they changed.
    """

    arm: str
    length: float
    outcome: Outcome
    to_random: Contrast | None
    random_leader: str | None
    earlier: tuple[Earlier, ...]


@dataclass(frozen=True)
class Judgement:
    """All conclusions of a comparison; ``by_seconds`` is the frontier with time as cost.

    ``seconds`` says which time: CPU time or wall-clock time. Both are None if times cannot be compared.
    """

    assessment: Assessment
    by_seconds: Frontier | None
    seconds: Seconds | None
    verdicts: tuple[Verdict, ...]

    def as_dict(self) -> dict[str, Any]:
        """The parts of results.json that interpret the runs."""
        assessment = self.assessment
        return {
            "decision": plain(assessment.decision),
            "gate": plain(assessment.gate),
            "level": assessment.level,
            "verdicts": plain(self.verdicts),
            "frontier": plain(assessment.frontier),
            "frontier_by_seconds": plain(self.by_seconds),
            "compared_seconds": self.seconds,
        }


NOTHING_JUDGED: dict[str, Any] = {
    "decision": None,
    "gate": None,
    "level": None,
    "verdicts": [],
    "frontier": None,
    "frontier_by_seconds": None,
    "compared_seconds": None,
}


def judge(records: Sequence[Record], question: Question) -> Judgement | None:
    """Judge every arm and length, from the records of the finished runs; None without ``full``."""
    if not any(record.arm == FULL for record in records):
        return None
    design = SequentialDesign(question.most_seeds) if question.most_seeds is not None else None
    passes = measurements(records, cost="samples_forwarded")
    controls = {run.arm for run in passes if run.arm.partition(":")[0] == RANDOM}
    assessment = assess(
        passes,
        margin=question.margin,
        higher_is_better=question.higher_is_better,
        full=FULL,
        controls=controls,
        wording=Wording(question.unit, question.settings, question.epochs),
        design=design,
    )
    seconds = seconds_to_compare(records)
    by_seconds = None
    if seconds is not None:
        by_seconds = frontier(
            measurements(records, cost=seconds),
            higher_is_better=question.higher_is_better,
            full=FULL,
            confidence=assessment.frontier.confidence,
        )
    verdicts = _verdicts(assessment, records, question)
    return Judgement(assessment, by_seconds, seconds, verdicts)


class _Qualities:
    """Finite metrics by arm, length and seed, signed so that higher is better."""

    def __init__(self, records: Sequence[Record], question: Question) -> None:
        sign = 1.0 if question.higher_is_better else -1.0
        self._cells: dict[Cell, dict[int, float]] = {}
        for record in records:
            if record.metric is not None:
                cell = self._cells.setdefault((record.arm, record.length), {})
                cell[record.seed] = sign * record.metric

    def differences(self, cell: Cell, other: Cell) -> list[float]:
        """The differences on the seeds that both have, the first seed first."""
        values, others = self._cells.get(cell, {}), self._cells.get(other, {})
        return [values[seed] - others[seed] for seed in sorted(values.keys() & others.keys())]


def _verdicts(
    assessment: Assessment, records: Sequence[Record], question: Question
) -> tuple[Verdict, ...]:
    qualities = _Qualities(records, question)
    confidence = assessment.frontier.confidence
    longest = max(record.length for record in records if record.arm == FULL)
    leader = next((record.leader for record in records if record.arm == RANDOM), None)
    verdicts = []
    for point, result in zip(assessment.frontier.points, assessment.outcomes, strict=True):
        cell = (point.arm, point.length)
        to_full = qualities.differences(cell, (FULL, longest))
        to_random = qualities.differences(cell, (RANDOM, point.length))
        is_compared = bool(to_random) and point.arm != RANDOM
        words = [
            outcome(contrast(to_full[:count], confidence=confidence), margin=question.margin).word
            for count in range(FEWEST_SEEDS, len(to_full))
        ]
        verdicts.append(
            Verdict(
                arm=point.arm,
                length=point.length,
                outcome=result,
                to_random=contrast(to_random, confidence=confidence) if is_compared else None,
                random_leader=leader,
                earlier=_changes(words, result.word),
            )
        )
    return tuple(verdicts)


def _changes(words: Sequence[Word], now: Word) -> tuple[Earlier, ...]:
    """The words on the first three, four, … seeds, each if it differs from the next."""
    return tuple(
        Earlier(count, word)
        for count, (word, then) in enumerate(pairwise([*words, now]), FEWEST_SEEDS)
        if word != then
    )


def plain(value: Any) -> Any:
    """Convert a value for JSON; a dataclass with a ``text`` keeps that, too."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        text = getattr(value, "text", None)
        return values if text is None else {**values, "text": text}
    if isinstance(value, tuple | list):
        return [plain(field) for field in value]
    return value
