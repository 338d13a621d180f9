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
from collections.abc import Iterator
from pathlib import Path

from pages import ROOT, STORED, with_block
from studies import NOISE, STUDIES
from tables import difference, saving, typed

from infobatch.lab.compare.results import read_results
from infobatch.lab.run.arms import INFOBATCH, Arm
from infobatch.lab.stats.intervals import decimals
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, mean_and_deviation
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


def written_cards() -> Iterator[tuple[Path, str]]:
    """Every card with the text that it should have."""
    rows: dict[str, list[str]] = {policy: [] for policy in POLICIES}
    for name, title in comparisons():
        for policy, row in rows_of(name, title):
            rows[policy].append(row)
    for policy in POLICIES:
        card = CARDS / f"{policy}.md"
        yield card, with_block(card, section(policy, rows[policy]))


def comparisons() -> Iterator[tuple[str, str]]:
    """The stored comparisons: folder and title."""
    for study in STUDIES:
        if (STORED / study.name / "results.json").exists():
            yield study.name, study.title


def rows_of(name: str, title: str) -> Iterator[tuple[str, str]]:
    """A row for each arm of a comparison at its longest length, with the policy that it prunes by."""
    results = read_results(STORED / name)
    digits = decimals(results.settings.margin)
    for row in results.summaries:
        if row.length != FULL_LENGTH:
            continue
        point = results.point(row.arm, row.length)
        cells = (
            f"[{title}](../results/{name}.md)",
            f"`{typed(row.arm)}`",
            str(len(row.seeds)),
            f"{results.settings.metric} {mean_and_deviation(row.metric, digits)}",
            f"{row.saved_fraction:.1%}",
            saving(point),
            difference(point, results),
        )
        for policy in policies_of(row.arm):
            yield policy, f"| {' | '.join(cells)} |"


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


def section(policy: str, rows: list[str]) -> str:
    """What a card says was measured: the rows of the comparisons, and the cost of an epoch boundary."""
    quality = (
        quality_table(rows) if rows else ["None of our comparisons has this rule as an arm yet."]
    )
    return "\n".join(["", "## Measured", "", *quality, "", *cost_table(policy), ""])


def quality_table(rows: list[str]) -> list[str]:
    return [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *rows,
        "",
        "The metric is a mean over seeds, ± their standard deviation. *At equal quality* is the share of compute that is saved "
        "against [training on all data for fewer epochs](../lab.md#why-lengths); *against all data* is the difference from training "
        "on all data for all epochs, with a 95% interval where there are several seeds.",
    ]


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
