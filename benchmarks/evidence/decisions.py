"""How often a comparison is decided, and how often wrongly: by single lengths, and by several lengths together.

    python benchmarks/evidence/decisions.py             # writes benchmarks/results/decisions.json and prints the tables
    python benchmarks/evidence/decisions.py --stored    # prints the tables of what is stored

Two kinds of comparisons, each judged by both rules of decision:

- simulated ones, in which arms save a known share at equal quality (the curves and the noise of ``coverage.py``). If
  they save nothing, or less, every "Use" is wrong;
- resampled ones, from the stored runs of Fashion-MNIST: seeds drawn with replacement, of all data and ``auto``; and all
  data under the name of an arm, with seeds that are not those of the curve, so that every "Use" is wrong as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np
from coverage import LENGTHS, OWN_NOISE, SHARED_NOISE, smooth
from stored import STORED as RESULTS
from stored import stored_results

from infobatch.files import write_atomically
from infobatch.lab.files import from_json
from infobatch.lab.run.machine import versions
from infobatch.lab.stats.decision import Kind, decide, shared_confidence
from infobatch.lab.stats.frontier import frontier, pooled_savings
from infobatch.lab.stats.intervals import CONFIDENCE, Array
from infobatch.lab.stats.pairing import Measurement, PairedRuns
from infobatch.lab.stats.runs import AUTO, FULL, Question, label_of
from infobatch.lab.stats.verdict import regime_gate

STORED = RESULTS / "decisions.json"
MARGIN = 0.5
ERROR = (1 - CONFIDENCE) / 2  # how often "Use" may be wrong
SIMULATED_SEEDS = (3, 5)
# What the arms keep, and what they save at equal quality.
ARMS = {
    "saves nothing": (0.65, 0.0),
    "saves nothing and leaves out nothing": (1.0, 0.0),
    "wastes 10%": (0.7, -0.1),
    "saves 10%": (0.75, 0.1),
    "saves 25%": (0.6, 0.25),
}
NUMBERS_OF_ARMS = (1, 4)
RESAMPLED = ("demo", "fresh-fashion")
SHORT_LENGTHS = ((0.4, 0.6, 1.0), (0.4, 0.6, 0.8, 1.0))  # the demo's, and those of most studies
RESAMPLED_SEEDS = (4, 6)
Grid = dict[tuple[str, float, int], tuple[float, float]]  # cost and quality by arm, length and seed


@dataclass(frozen=True)
class Row:
    """The shares of the decisions of one kind of comparison by one rule."""

    source: str  # "simulated", or the stored comparison
    arm: str
    arms: int
    seeds: int
    lengths: tuple[float, ...]
    pooled: bool  # judged by several lengths together
    count: int
    use: float  # "use", alone or instead of shorter training
    settled: float  # any other decision
    undecided: float

    @property
    def saves(self) -> bool:
        """Whether "Use" is right."""
        return self.arm == AUTO or (self.arm in ARMS and ARMS[self.arm][1] > 0)


def kinds_of(runs: Sequence[Measurement]) -> tuple[Kind, Kind]:
    """The decision by single lengths, then by several together, each at its level."""
    pairs, question = (
        PairedRuns(runs, higher_is_better=True),
        Question(MARGIN, higher_is_better=True),
    )
    arms = len({arm for arm, _ in pairs.cells})
    placed = frontier(pairs, confidence=shared_confidence(len(pairs.cells)))
    pooled = pooled_savings(pairs, confidence=shared_confidence(arms, pooled=True))
    gate = regime_gate(pairs, margin=MARGIN)
    single, several = (
        decide(replace(placed, pooled=rows), gate, question).kind for rows in ((), pooled)
    )
    return single, several


def rows_of(  # noqa: PLR0917 - the fields of a row
    source: str,
    arm: str,
    arms: int,
    seeds: int,
    lengths: tuple[float, ...],
    comparisons: Iterable[Sequence[Measurement]],
) -> list[Row]:
    """Decide every comparison by both rules, and count."""
    kinds = list(zip(*map(kinds_of, comparisons), strict=True))
    rows = []
    for pooled, found in zip((False, True), kinds, strict=True):
        use = float(np.mean([kind.startswith("use") for kind in found]))
        undecided = float(np.mean([kind == "not decided" for kind in found]))
        settled = 1 - use - undecided
        row = Row(source, arm, arms, seeds, lengths, pooled, len(found), use, settled, undecided)
        rows.append(row)
    return rows


def simulated(arm: str, arms: int, seeds: int, count: int) -> list[Row]:
    """Comparisons of full data at four lengths with one or several arms that are alike."""
    kept, saving = ARMS[arm]
    generator = np.random.default_rng([seeds, arms])
    costs = kept * LENGTHS
    truths = {FULL: (LENGTHS, smooth(LENGTHS))}
    truths |= {f"arm {place}": (costs, smooth(costs / (1 - saving))) for place in range(arms)}

    def comparison() -> list[Measurement]:
        shared = generator.normal(0, SHARED_NOISE, seeds)
        return [
            Measurement(name, float(length), seed, float(cost), 90 + quality + noise)
            for name, (costs, qualities) in truths.items()
            for length, cost, quality in zip(LENGTHS, costs, qualities, strict=True)
            for seed, noise in enumerate(shared + generator.normal(0, OWN_NOISE, seeds))
        ]

    lengths = tuple(LENGTHS.tolist())
    return rows_of("simulated", arm, arms, seeds, lengths, (comparison() for _ in range(count)))


@cache
def grid_of(name: str) -> Grid:
    """The stored runs of all data and ``auto``."""
    return {
        (label_of(run.arm), run.length, run.seed): (run.costs.samples_forwarded, run.metric)
        for run in stored_results(name).runs
        if label_of(run.arm) in (FULL, AUTO) and run.metric is not None
    }


def taken(
    name: str, chosen: dict[str, tuple[str, Array]], lengths: Sequence[float]
) -> list[Measurement]:
    """Stored runs as a comparison: of each of its arms, which stored arm and which seeds it is."""
    grid = grid_of(name)
    return [
        Measurement(arm, length, place, *grid[stored, length, int(seed)])
        for arm, (stored, seeds) in chosen.items()
        for length in lengths
        for place, seed in enumerate(seeds)
        if (stored, length, int(seed)) in grid
    ]


def resampled(name: str, lengths: tuple[float, ...], seeds: int, count: int) -> list[Row]:
    """Comparisons of all data with ``auto`` on seeds drawn from the stored ones, with replacement."""
    available = sorted({seed for _, _, seed in grid_of(name)})
    generator = np.random.default_rng([seeds, round(100 * sum(lengths))])

    def comparison() -> list[Measurement]:
        drawn = generator.choice(available, seeds)
        return taken(name, {FULL: (FULL, drawn), "arm": (AUTO, drawn)}, lengths)

    return rows_of(name, AUTO, 1, seeds, lengths, (comparison() for _ in range(count)))


def exchanged(name: str, lengths: tuple[float, ...], seeds: int, count: int) -> list[Row]:
    """Comparisons of all data with itself: different seeds for the curve and the arm, none of them twice."""
    available = sorted({seed for _, _, seed in grid_of(name)})
    generator = np.random.default_rng([seeds, round(100 * sum(lengths)), 1])

    def comparison() -> list[Measurement]:
        mixed = generator.permutation(available)
        chosen = {FULL: (FULL, mixed[:seeds]), "arm": (FULL, mixed[seeds : 2 * seeds])}
        return taken(name, chosen, lengths)

    return rows_of(name, FULL, 1, seeds, lengths, (comparison() for _ in range(count)))


def table(rows: Sequence[Row]) -> list[str]:
    """One line for each kind of comparison: the shares by single lengths, then by several together."""
    columns = ["arms", "seeds", "“Use”", "other decisions", "not decided"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for single, several in zip(rows[::2], rows[1::2], strict=True):
        cells = [
            f"{getattr(single, name):.1%}, {getattr(several, name):.1%}"
            for name in ("use", "settled", "undecided")
        ]
        name = f"{single.arms} × {single.arm}" if single.arms > 1 else single.arm
        if single.source != "simulated":
            name = f"{single.source}: {single.arm}, {', '.join(f'{x:g}' for x in single.lengths)}"
        lines.append(f"| {name} | {single.seeds} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="comparisons of each kind")
    parser.add_argument("--stored", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    if not arguments.stored:
        store(arguments.count)
    rows = [from_json(Row, row) for row in json.loads(STORED.read_text())["rows"]]
    for of_simulated in (True, False):
        print(
            "\n".join(table([row for row in rows if (row.source == "simulated") == of_simulated]))
        )
        print()


def store(count: int) -> None:
    """Make every kind of comparison."""
    rows = [
        row
        for arm in ARMS
        for arms in NUMBERS_OF_ARMS
        for seeds in SIMULATED_SEEDS
        for row in simulated(arm, arms, seeds, count)
    ]
    for name in RESAMPLED:
        for lengths in SHORT_LENGTHS:
            for seeds in RESAMPLED_SEEDS:
                rows += resampled(name, lengths, seeds, count)
            rows += exchanged(name, lengths, 5, count)
    stored = {
        "command": f"python benchmarks/evidence/decisions.py --count {count}",
        "versions": versions(),
        "count": count,
        "confidence": CONFIDENCE,
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(stored, indent=1) + "\n"
    write_atomically(STORED, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
