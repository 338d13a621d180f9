"""The verdict of a comparison: is an arm as good as training on all data, up to a stated margin?

A non-inferiority test. Runs are paired by seed, so that what a seed does to both arms cancels; the
difference ``arm - full`` has a 95% t interval; and the margin was stated before any run. An arm that
is really worse by the margin is called lossless in at most 2.5% of all comparisons, provided that
the number of seeds was fixed beforehand: looking after each seed and stopping at the first "Lossless"
would be wrong more often. Two pairs can be alike by chance, so that nothing is decided below three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from infobatch.lab.arms import FULL, RANDOM, SHORT
from infobatch.lab.intervals import half_width, t_interval

USUAL_SEEDS = 5
FEWEST_PAIRS = 3
Decision = Literal["lossless", "worse", "undecided"]


@dataclass(frozen=True)
class Difference:
    """``arm`` minus ``to``, paired by seed, in the metric's units; below zero the arm is worse."""

    to: str
    seeds: tuple[int, ...]
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one arm.

    ``text`` is the verdict in the words of the table, the JSON and the report; ``explanation`` is
    a sentence or two on what it rests on. ``more_seeds`` is set while the decision is open.
    """

    arm: str
    decision: Decision
    text: str
    explanation: str
    margin: float
    more_seeds: int | None
    diverged: tuple[int, ...]  # seeds for which full has a finite metric and this arm has none
    differences: tuple[Difference, ...]

    def difference_to(self, arm: str) -> Difference | None:
        """The difference to another arm, where there is one."""
        return next((difference for difference in self.differences if difference.to == arm), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = asdict(self)
        plain["diverged"] = list(self.diverged)
        plain["differences"] = [
            {**difference, "seeds": list(difference["seeds"])}
            for difference in plain["differences"]
        ]
        return plain


def judge(
    runs: Iterable[Mapping[str, Any]],
    *,
    metric: str,
    margin: float,
    higher_is_better: bool,
    arms: Sequence[str],
) -> list[Verdict]:
    """Judge every arm but ``full``, from the records of the finished runs (``results.json``).

    Arms are compared on the seeds that both have finished. A seed without a finite metric is not
    left out in silence, which would flatter an arm that diverges: see :class:`Verdict`.
    """
    sign = 1.0 if higher_is_better else -1.0
    metrics: dict[str, dict[int, float]] = {arm: {} for arm in arms}
    for run in runs:
        value = run.get("metric")
        metrics.setdefault(run["arm"], {})[run["seed"]] = (
            math.nan if value is None else sign * float(value)
        )
    return [
        _judge_arm(arm, metrics, metric=metric, margin=margin) for arm in metrics if arm != FULL
    ]


def _judge_arm(
    arm: str, metrics: Mapping[str, Mapping[int, float]], *, metric: str, margin: float
) -> Verdict:
    differences = tuple(
        _difference(metrics[arm], metrics[other], other)
        for other in (FULL, SHORT, RANDOM)
        if other != arm and other in metrics
    )
    full = metrics.get(FULL, {})
    diverged = tuple(
        seed
        for seed, value in sorted(full.items())
        if math.isfinite(value) and not math.isfinite(metrics[arm].get(seed, 0.0))
    )
    to_full = differences[0] if differences and differences[0].to == FULL else None
    digits = decimals(margin)
    decision, more = decide(to_full, margin=margin)
    if diverged:
        decision, more = "worse", None
        text = f"worse by more than a number can say: no finite {metric} with {_seeds(diverged)}"
    elif decision == "worse":
        assert to_full is not None
        assert to_full.mean is not None
        assert to_full.low is not None
        assert to_full.high is not None
        text = (
            f"worse by {-to_full.mean:.{digits}f} "
            f"(95% interval {-to_full.high:.{digits}f} to {-to_full.low:.{digits}f})"
        )
    elif decision == "lossless":
        text = "Lossless"
    else:
        text = f"not enough seeds to tell: about {more} more"
    explanation = _explain(decision, to_full, margin=margin, diverged=bool(diverged))
    untold = [seed for seed in sorted(metrics[arm].keys() & full) if not math.isfinite(full[seed])]
    if untold:
        are = "is" if len(untold) == 1 else "are"
        explanation += f" {_seeds(untold).capitalize()} {are} left out: "
        explanation += f"training on all data has no finite {metric} there."
    return Verdict(arm, decision, text, explanation, margin, more, diverged, differences)


def _difference(own: Mapping[int, float], other: Mapping[int, float], name: str) -> Difference:
    seeds = tuple(
        seed
        for seed in sorted(own.keys() & other.keys())
        if math.isfinite(own[seed]) and math.isfinite(other[seed])
    )
    found = t_interval([own[seed] - other[seed] for seed in seeds])
    if found is None:
        return Difference(name, seeds, None, None, None, None)
    return Difference(name, seeds, found.mean, found.sd, found.low, found.high)


def decide(difference: Difference | None, *, margin: float) -> tuple[Decision, int | None]:
    """Decide on ``arm - full``, and say how many more seeds it would take where that is open.

    One seed tells nothing of how much seeds differ, so no number can be computed: then it takes as
    many as make five, which is what a comparison runs by default. Two seeds give a number, of which
    the least is the one that makes three.
    """
    if difference is None or difference.mean is None:
        return "undecided", USUAL_SEEDS
    if difference.sd is None:
        return "undecided", USUAL_SEEDS - 1
    assert difference.low is not None
    assert difference.high is not None
    if len(difference.seeds) >= FEWEST_PAIRS:
        if difference.low > -margin:
            return "lossless", None
        if difference.high < 0:
            return "worse", None
    return "undecided", more_seeds(
        difference.mean, difference.sd, margin=margin, count=len(difference.seeds)
    )


def more_seeds(mean: float, sd: float, *, margin: float, count: int) -> int:
    """The fewest additional seeds that would decide, if mean and deviation stayed as they are.

    The interval decides as soon as half of it is less than ``mean + margin`` (lossless) or than
    ``-mean`` (worse). One of the two is at least half the margin, so there always is an answer;
    it is rounded up to two digits, since it comes from a deviation over few seeds.
    """
    enough = max(mean + margin, -mean)

    def decided(extra: int) -> bool:
        return half_width(sd, count + extra) < enough

    above = 1
    while not decided(above):
        above *= 2
    below = above // 2  # not decided
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (below, middle) if decided(middle) else (middle, above)
    unit: int = 10 ** max(0, len(str(above)) - 2)
    return -(-above // unit) * unit


def decimals(margin: float) -> int:
    """How many decimals a metric needs where differences of this margin matter."""
    return max(0, 2 - math.ceil(math.log10(margin)))


def described(difference: Difference, digits: int, *, named: str = "95% interval ") -> str:
    """A difference in words: ``−0.12 (95% interval −0.40 to +0.16)``."""
    if difference.mean is None:
        return "no common seed"
    told = f"{difference.mean:+.{digits}f} "
    if difference.low is None or difference.high is None:
        told += "(one seed, no interval)"
    else:
        told += f"({named}{difference.low:+.{digits}f} to {difference.high:+.{digits}f})"
    return told.replace("-", "−")


def _explain(
    decision: Decision, difference: Difference | None, *, margin: float, diverged: bool
) -> str:
    if difference is None:
        return "There is no full run to compare with: run the arm full, too."
    count = len(difference.seeds)
    told = f"Difference to full: {described(difference, decimals(margin))}, "
    told += f"{count} paired {'seed' if count == 1 else 'seeds'}. "
    if diverged:
        why = "Its training diverged where training on all data did not."
    elif count == 0:
        why = "No seed is finished with a finite result both here and on all data."
    elif count == 1:
        why = f"One seed cannot show how much seeds differ; {USUAL_SEEDS} are usual."
    elif count < FEWEST_PAIRS:
        why = f"A verdict takes at least {FEWEST_PAIRS} pairs; {USUAL_SEEDS} are usual."
    elif decision == "worse":
        why = f"The interval is below zero and reaches the margin of {margin:g} or beyond."
    elif decision == "undecided":
        why = f"The interval neither clears the margin of {margin:g} nor excludes zero."
    else:
        assert difference.high is not None
        why = f"All of the interval is above −{margin:g}, the margin stated before the run"
        why += "; it is a little worse, by less than the margin." if difference.high < 0 else "."
    return why if count == 0 else told + why


def _seeds(seeds: Sequence[int]) -> str:
    noun = "seed" if len(seeds) == 1 else "seeds"
    return f"{noun} {', '.join(map(str, seeds))}"
