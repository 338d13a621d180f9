"""The assessment of a comparison, made once: frontier, gate, verdicts and the decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from infobatch.lab.stats.contrast import CONFIDENCE
from infobatch.lab.stats.decision import Decision, decide
from infobatch.lab.stats.frontier import Frontier, frontier
from infobatch.lab.stats.gate import Gate, regime_gate
from infobatch.lab.stats.measurements import Measurement
from infobatch.lab.stats.outcome import Outcome, outcome
from infobatch.lab.stats.sentences import Wording
from infobatch.lab.stats.sequential import SequentialDesign


@dataclass(frozen=True)
class Assessment:
    """The results of a comparison.

    ``frontier`` has a separate interval for each point, for tables and figures, and ``outcomes`` a
    verdict for each of its points, in the same order. ``simultaneous`` has the candidates only,
    with the wider intervals that hold for all of them at once; the decision rests on these.
    ``level`` is a sentence on what the intervals cover and how often a "use" is wrong.
    """

    decision: Decision
    gate: Gate
    frontier: Frontier
    outcomes: tuple[Outcome, ...]
    simultaneous: Frontier
    level: str


def assess(
    measurements: Iterable[Measurement],
    *,
    margin: float,
    higher_is_better: bool,
    full: str = "full",
    controls: Collection[str] = (),
    wording: Wording | None = None,
    design: SequentialDesign | None = None,
) -> Assessment:
    """Judge a comparison.

    Arms in ``controls``, such as random pruning, are shown but never recommended, and take no share
    of the error. With a ``design``, every interval allows for looking again whenever seeds are
    added.
    """
    runs = list(measurements)
    confidence = design.confidence() if design else CONFIDENCE
    each = frontier(runs, higher_is_better=higher_is_better, full=full, confidence=confidence)
    if design:
        design.check(len(each.seeds))
    count = sum(point.arm not in controls for point in each.points)
    overall = 1 - (1 - CONFIDENCE) / max(count, 1)
    shared = design.confidence(overall) if design else overall
    together = frontier(runs, higher_is_better=higher_is_better, full=full, confidence=shared)
    together = replace(
        together,
        points=tuple(point for point in together.points if point.arm not in controls),
        reaches=tuple(reach for reach in together.reaches if reach.arm not in controls),
    )
    gate = regime_gate(
        runs, margin=margin, higher_is_better=higher_is_better, full=full, confidence=confidence
    )
    return Assessment(
        decision=decide(together, gate, margin=margin, wording=wording),
        gate=gate,
        frontier=each,
        outcomes=tuple(
            outcome(point.to_full, margin=margin, diverged=point.diverged) for point in each.points
        ),
        simultaneous=together,
        level=_level(count, shared, design),
    )


def _level(count: int, confidence: float, design: SequentialDesign | None) -> str:
    error = 100 * (1 - CONFIDENCE) / 2
    sentences = f"If no arm is worth using, the decision is “Use” in at most {error:g}% of all "
    sentences += "comparisons"
    sentences += f", at all looks with up to {design.most} seeds together. " if design else ". "
    if count > 1:
        sentences += f"The {count} pairs of arm and length share that error, so intervals in the "
        sentences += (
            f"decision are {_percent(confidence)} intervals, wider than those of each pair by "
        )
        sentences += "itself elsewhere. "
    return sentences + "Intervals are over seeds, not over test items."


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.4g}%"
