"""How often the interval of a saving covers the truth, by simulation: of one length, and of three pooled.

    python benchmarks/evidence/coverage.py             # writes benchmarks/results/coverage.json and prints the table
    python benchmarks/evidence/coverage.py --stored    # prints the table of what is stored

Full data has a known curve, and an arm that keeps a share of the samples is as good as full data that costs a known
amount more. Qualities have noise that an arm shares with full data on the same seed, which cancels, and noise of their
own: of one size for every kind of arm, and for one of them also of the sizes that stored comparisons have.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from stored import stored_results

from infobatch.files import write_atomically
from infobatch.lab.files import from_json
from infobatch.lab.stats.curve import cross, fit_curve
from infobatch.lab.stats.intervals import CONFIDENCE, Array

STORED = Path(__file__).parents[1] / "results" / "coverage.json"
LENGTHS = np.array([0.4, 0.6, 0.8, 1.0])
POOLED = LENGTHS[1:]  # those from which a saving is pooled
SHARED_NOISE, OWN_NOISE = 0.3, 0.15  # standard deviations, in points
SEEDS = (3, 5, 10)
NOISY = ("demo", "fresh-fashion", "between-fashion")  # comparisons whose noise is measured


def smooth(cost: Array) -> Array:
    """Against the full length, losses of 2.4, 0.9 and 0.3 points."""
    return -0.8 * cost**-1.5


def straight(cost: Array) -> Array:
    """The same, joined as the estimator joins them, and continued beyond its ends."""
    inverse, knots, qualities = 1 / cost, 1 / LENGTHS, smooth(LENGTHS)
    inside = np.interp(-inverse, -knots, qualities)
    first = qualities[0] + (inverse - knots[0]) * _slope(knots, qualities, 0)
    last = qualities[-1] + (inverse - knots[-1]) * _slope(knots, qualities, -2)
    return np.where(cost < LENGTHS[0], first, np.where(cost > LENGTHS[-1], last, inside))


def _slope(knots: Array, qualities: Array, place: int) -> float:
    return float((qualities[place + 1] - qualities[place]) / (knots[place + 1] - knots[place]))


@dataclass(frozen=True)
class Truth:
    """A curve and an arm: the share that it keeps, and what it saves at lengths 0.6, 0.8 and 1."""

    name: str
    curve: Callable[[Array], Array]
    kept: float
    savings: tuple[float, float, float]

    @property
    def saving(self) -> float:
        """The mean over the lengths."""
        return float(np.mean(self.savings))


SMOOTH = Truth("saves 30%, a smooth curve", smooth, 0.58, (0.3, 0.3, 0.3))
TRUTHS = (
    Truth("saves 30%", straight, 0.58, (0.3, 0.3, 0.3)),
    SMOOTH,
    Truth("saves 10%, leaves out a fifth", smooth, 0.8, (0.1, 0.1, 0.1)),
    Truth("saves nothing", smooth, 0.65, (0.0, 0.0, 0.0)),
    Truth("saves 25, 30 and 35%", smooth, 0.58, (0.25, 0.3, 0.35)),
)


@dataclass(frozen=True)
class Row:
    """What became of the intervals of one truth, number of seeds and estimator."""

    truth: str
    noise: float  # the standard deviation over seeds of the arm minus full data, in points
    seeds: int
    lengths: tuple[float, ...]
    covered: float  # the share of the intervals that contain the truth
    bias: float  # the mean estimate less the truth
    deviation: float  # the standard deviation of the estimates
    open: float  # the share of the intervals that are open on a side


def noise_of(name: str) -> float:
    """The standard deviation over seeds of an arm minus full data at full length, over the arms and lengths of a study."""
    frontier = stored_results(name).conclusions.frontier
    assert frontier is not None
    deviations = [
        point.to_full.sd
        for point in frontier.points
        if point.length in POOLED and point.to_full is not None and point.to_full.sd is not None
    ]
    return float(np.sqrt(np.square(deviations).mean()))


def simulate(truth: Truth, seeds: int, count: int, own_noise: float = OWN_NOISE) -> list[Row]:
    """Estimate the saving in many comparisons, from length 1 alone and from three lengths together."""
    generator = np.random.default_rng(seeds)
    found: dict[tuple[float, ...], list[tuple[float, float, float]]] = {}
    costs = truth.kept * POOLED
    equal = costs / (1 - np.array(truth.savings))
    for _ in range(count):
        shared = generator.normal(0, SHARED_NOISE, seeds)

        def drawn(values: Array, shared: Array = shared) -> Array:
            noise = generator.normal(0, own_noise, (len(values), seeds))
            return values[:, None] + shared + noise

        full, arm = drawn(truth.curve(LENGTHS)), drawn(truth.curve(equal))
        curve = fit_curve(np.log(LENGTHS)[:, None] + 0 * full, full)
        for rows in (slice(2, 3), slice(0, 3)):
            log_cost = np.log(costs[rows])[:, None] + 0 * arm[rows]
            crossing = cross(curve, log_cost, arm[rows], confidence=CONFIDENCE)
            assert crossing.low is not None
            assert crossing.high is not None
            key = tuple(POOLED[rows].tolist())
            found.setdefault(key, []).append((crossing.estimate, crossing.low, crossing.high))
    noise = math.sqrt(2) * own_noise
    return [row_of(truth, noise, seeds, lengths, np.array(rows)) for lengths, rows in found.items()]


def row_of(truth: Truth, noise: float, seeds: int, lengths: tuple[float, ...], rows: Array) -> Row:
    """Summarise the crossings: columns are the estimate and the two ends, as logs of cost ratios."""
    saving = truth.savings[-1] if len(lengths) == 1 else truth.saving
    wanted = -math.log(1 - saving)
    estimates = -np.expm1(-rows[:, 0])
    return Row(
        truth=truth.name,
        noise=noise,
        seeds=seeds,
        lengths=lengths,
        covered=float(np.mean((rows[:, 1] <= wanted) & (wanted <= rows[:, 2]))),
        bias=float(estimates.mean() - saving),
        deviation=float(estimates.std()),
        open=float(np.mean(np.isinf(rows[:, 1:]).any(axis=1))),
    )


def table(rows: list[Row]) -> list[str]:
    """One line for each truth and number of seeds: length 1 alone, and the three lengths."""
    measures = ["covered", "estimate off by", "spread", "open intervals"]
    columns = ["the arm", "noise", "seeds", *measures]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for one, pooled in zip(rows[::2], rows[1::2], strict=True):
        cells = [
            f"{one.covered:.0%}, {pooled.covered:.0%}",
            f"{100 * one.bias:+.1f}, {100 * pooled.bias:+.1f}".replace("-", "−"),
            f"{100 * one.deviation:.1f}, {100 * pooled.deviation:.1f}",
            f"{one.open:.0%}, {pooled.open:.0%}",
        ]
        lines.append(f"| {one.truth} | {one.noise:.2f} | {one.seeds} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000, help="comparisons of each kind")
    parser.add_argument("--stored", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    if not arguments.stored:
        store(arguments.count)
    rows = [from_json(Row, row) for row in json.loads(STORED.read_text())["rows"]]
    print("\n".join(table(rows)))


def store(count: int) -> None:
    """Simulate every truth, and one with the noise of stored comparisons, with every number of seeds."""
    kinds = [(truth, OWN_NOISE) for truth in TRUTHS]
    for name in NOISY:
        truth = replace(SMOOTH, name=f"{SMOOTH.name}, as noisy as `{name}`")
        kinds.append((truth, noise_of(name) / math.sqrt(2)))
    rows = [
        row
        for truth, noise in kinds
        for seeds in SEEDS
        for row in simulate(truth, seeds, count, noise)
    ]
    stored = {"count": count, "confidence": CONFIDENCE, "rows": [asdict(row) for row in rows]}
    text = json.dumps(stored, indent=1) + "\n"
    write_atomically(STORED, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
