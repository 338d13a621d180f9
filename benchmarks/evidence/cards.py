"""Write what was measured of each pruning policy into its card, from the stored comparisons; or check it.

    python benchmarks/evidence/cards.py            # what `make results` runs
    python benchmarks/evidence/cards.py --check    # fails where a card and the JSON disagree

The comparisons are the demo and the studies that are stored. A card whose policy is in none of them has only
the cost of an epoch boundary, which is measured for every policy.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pages import with_block
from stored import ROOT, STORED, identity, is_stored, stored_results
from studies import NOISE, STUDIES
from tables import arm_savings, difference, typed

from infobatch.lab.run.arms import INFOBATCH, Arm
from infobatch.lab.stats.intervals import decimals
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, label_of, mean_and_deviation
from infobatch.policies import POLICIES

CARDS = ROOT / "docs" / "policies"
COLUMNS = (
    "comparison",
    "arm",
    "seeds",
    "metric",
    "passes saved",
    "at equal quality",
    "against all data",
)


def main() -> None:
    cards = {card: text for card, text in written_cards() if text != card.read_text()}
    if "--check" in sys.argv[1:]:
        if cards:
            names = ", ".join(card.name for card in cards)
            sys.exit(f"Not what is stored: {names}. Run: make results")
        return
    for card, text in cards.items():
        card.write_text(text)
        print(f"Wrote {card.relative_to(ROOT)}")


@dataclass(frozen=True)
class Row:
    """A line of a card's table, and the runs that it is about."""

    title: str
    line: str
    runs: frozenset[Hashable]


def written_cards() -> Iterator[tuple[Path, str]]:
    """Every card with the text that it should have."""
    rows: dict[str, list[Row]] = {policy: [] for policy in POLICIES}
    for study in STUDIES:
        if is_stored(study.name):
            for policy, row in rows_of(study.name, study.title):
                rows[policy].append(row)
    for policy in POLICIES:
        card = CARDS / f"{policy}.md"
        yield card, with_block(card, section(policy, rows[policy]))


def rows_of(name: str, title: str) -> Iterator[tuple[str, Row]]:
    """A row for each arm of a comparison at its full length, with the policy that it prunes by."""
    results = stored_results(name)
    digits = decimals(results.settings.margin)
    has_curve = len(results.settings.lengths) > 1
    savings = {row.arm: row for row in arm_savings(results)} if has_curve else {}
    for row in results.summaries:
        if row.length != FULL_LENGTH:
            continue
        point = results.point(row.arm, row.length)
        saved = savings.get(row.arm)
        cells = (
            f"[{title}](../results/{name}.md)",
            f"`{typed(label_of(row.arm))}`",
            str(len(row.seeds)),
            f"{results.settings.metric} {mean_and_deviation(row.metric, digits)}",
            f"{row.saved_fraction:.1%}",
            saved.pooled_text if saved is not None and saved.has_interval else "–",
            difference(point, results),
        )
        runs = frozenset(
            identity(run) for run in results.runs if (run.arm, run.length) == (row.arm, row.length)
        )
        for policy in policies_of(row.arm):
            yield policy, Row(title, f"| {' | '.join(cells)} |", runs)


def policies_of(name: str) -> tuple[str, ...]:
    """The policies that an arm on all data trains with: two where one is a setting of the other."""
    arm = Arm(name)
    if name == FULL:
        return ("none",)
    if name == NOISE:
        return "noise", "auto"
    if arm.coreset is not None or not arm.prunes or arm.file is not None:
        return ()
    rule = "mean" if arm.rule == INFOBATCH else arm.rule
    return (rule,) if rule in POLICIES else ()  # `stream` prunes within a batch


def section(policy: str, rows: list[Row]) -> str:
    """What a card says was measured: the rows of the comparisons, and the cost of an epoch boundary."""
    quality = (
        quality_table(rows) if rows else ["None of our comparisons has this rule as an arm yet."]
    )
    return "\n".join(["", "## Measured", "", *quality, "", *cost_table(policy), ""])


def quality_table(rows: list[Row]) -> list[str]:
    note = (
        "The metric is a mean over seeds, ± their standard deviation. *At equal quality* is the share of compute that is saved "
        "against [training on all data for fewer epochs](../lab.md#why-lengths), from the lengths from 0.6 to 1 together, where the "
        "seeds suffice for an interval; *against all data* is the difference from training "
        "on all data for all epochs, with a 95% interval where there are several seeds."
    )
    return [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(row.line for row in rows),
        "",
        note + in_common(rows),
    ]


def in_common(rows: list[Row]) -> str:
    """Which of the rows show the same runs: they are one measurement, not several."""
    seen = Counter(run for row in rows for run in row.runs)
    titles = dict.fromkeys(row.title for row in rows if any(seen[run] > 1 for run in row.runs))
    if not titles:
        return ""
    return f" Runs of some rows are the same runs, and count once: {'; '.join(titles)}."


def cost_table(policy: str) -> list[str]:
    stored = json.loads((STORED / "rules.json").read_text())
    if policy == "mean":
        milliseconds = statistics.median(row["mean_ms"] for row in stored["rules"].values())
        ratio, remembered = 1.0, stored["mean_remembered"]
    else:
        row = stored["rules"][policy]
        milliseconds, ratio, remembered = row["ms"], row["ratio"], row["remembered"]
    return [
        f"| once per epoch, {stored['size']:,} samples | relative to the mean rule | bytes per sample remembered |",
        "|---|---|---|",
        f"| {milliseconds:.0f} ms | {ratio:.2f} × | {remembered:.0f} |",
        "",
        "Processor time on one thread; [all rules](../performance.md).",
    ]


if __name__ == "__main__":
    main()
