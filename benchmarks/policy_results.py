"""Write what was measured of each pruning policy into its card, from the stored results.

python benchmarks/policy_results.py            # into docs/policies/*.md
python benchmarks/policy_results.py --print mean

The comparisons are those of ``benchmarks/results/demo`` and ``benchmarks/results/evidence/*``, and the time of an
epoch's boundary is that of ``benchmarks/results/rules.json``. A card without data has no such section.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infobatch.lab.compare.answer import points
from infobatch.lab.compare.results import read_results
from infobatch.lab.run.arms import Arm
from infobatch.lab.stats.outcome import decimals
from infobatch.lab.stats.records import read_record
from infobatch.lab.stats.summary import mean_and_deviation, summarise
from infobatch.policies import POLICIES

ROOT = Path(__file__).parent.parent
STORED = ROOT / "benchmarks" / "results"
CARDS = ROOT / "docs" / "policies"
BEGIN = "<!-- measured: written by `python benchmarks/policy_results.py` -->\n"
END = "<!-- end -->\n"
HEADER = [
    "| task | arm | seeds | metric | full data | sample passes saved | saved at equal quality | verdict |",
    "|---|---|---|---|---|---|---|---|",
]


def measured(policy: str) -> str:
    """The section of a card; empty where nothing was measured."""
    rows = [row for folder in folders() for row in compared(policy, folder)]
    cost = boundary(policy)
    if not rows and not cost:
        return ""
    lines = ["## Measured", ""]
    if cost:
        lines += [cost, ""]
    if rows:
        lines += [*HEADER, *rows, ""]
        lines += [
            "Means ± standard deviations over seeds, at full length. *Saved at equal quality* is against training on all "
            "data for fewer epochs: see [why lengths](../lab.md#why-lengths) and [all results](../results/index.md).",
            "",
        ]
    return "\n".join(lines)


def folders() -> Iterator[Path]:
    """The stored comparisons."""
    for path in [STORED / "demo", *sorted((STORED / "evidence").glob("*"))]:
        if (path / "results.json").exists():
            yield path


def compared(policy: str, folder: Path) -> Iterator[str]:
    """A row for each arm of a comparison that trains by this policy, at the longest length."""
    results = read_results(folder)
    digits, longest = decimals(results["margin"]), max(results["lengths"])
    words = {(row["arm"], row["length"]): row["outcome"]["word"] for row in results["verdicts"]}
    summaries = summarise(map(read_record, results["runs"]), arms=results["arms"])
    full = next(
        (row for row in summaries if row.arm == "full" and row.length == longest),
        None,
    )
    for row in summaries:
        if row.length != longest or policy_of(row.arm) != policy:
            continue
        saving = points(results).get((row.arm, row.length), {}).get("saving")
        cells = (
            task_of(results),
            f"`{row.arm}`",
            str(len(row.seeds)),
            f"{results['metric']} {mean_and_deviation(row.metric, digits)}",
            "–" if full is None else mean_and_deviation(full.metric, digits),
            f"{row.saved_fraction:.1%}",
            "–" if saving is None else saving["text"],
            words.get((row.arm, row.length), "–"),
        )
        yield f"| {' | '.join(cells)} |"


def policy_of(name: str) -> str | None:
    """The policy's name, for arms that train on all data by one of ours."""
    arm = Arm(name)
    if arm.coreset is not None or not arm.prunes:
        return None
    return "mean" if arm.rule == "infobatch" else arm.rule


def task_of(results: dict[str, Any]) -> str:
    """The task, with the options that it was run with."""
    options = [f"{name}={value}" for name, value in results["options"].items()]
    return ", ".join([f"`{results['task']}`", *options])


def boundary(policy: str) -> str:
    """What the time between two epochs is beside the mean rule's."""
    path = STORED / "rules.json"
    stored = json.loads(path.read_text()) if path.exists() else {"rules": {}}
    if policy not in stored["rules"]:
        return ""
    row = stored["rules"][policy]
    return (
        f"An epoch's boundary takes {row['ratio']:.2f} × the processor time that it takes with the mean rule, at "
        f"{stored['size']:,} samples, and {row['remembered']:.0f} bytes per sample are remembered."
    )


def write_into(page: Path, text: str) -> None:
    """Put a section between the two marks of a card."""
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    before = page.read_text()
    if not marked.search(before):
        sys.exit(f"{page} has no lines {BEGIN.strip()} and {END.strip()}.")
    page.write_text(marked.sub(lambda _: f"{BEGIN}{text}{END}", before))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--print"]:
        print(measured(sys.argv[2]), end="")
    else:
        for name in POLICIES:
            write_into(CARDS / f"{name}.md", measured(name))
