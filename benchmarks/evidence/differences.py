"""Comparisons that try rules which are not in the package: how they differ from ``auto``, and no advice."""

from __future__ import annotations

from collections.abc import Sequence

import tables

from infobatch.lab.compare.results import Results
from infobatch.lab.stats.frontier import SavingDifference, saving_differences
from infobatch.lab.stats.pairing import PairedRuns, measurements
from infobatch.lab.stats.runs import AUTO

CAPTION = (
    "*Against `auto`*: the difference between the two savings at equal quality, as shares of the compute of all data, from the seeds that "
    "both have. Its 95% interval inverts a t test over seeds, like that of each saving, and is for one rule by itself."
)


def differences(results: Results) -> tuple[SavingDifference, ...]:
    """How much more each arm saves than ``auto``."""
    runs = measurements(results.runs, cost="samples_forwarded")
    paired = PairedRuns(runs, higher_is_better=results.settings.higher_is_better)
    return saving_differences(paired, AUTO)


def tries_rules(results: Results) -> bool:
    """Whether a comparison with several lengths has rules of a script."""
    return len(results.settings.lengths) > 1 and any(".py:" in arm for arm in results.settings.arms)


def differences_table(results: Results) -> list[str]:
    """A row for each arm: how much more it saves than ``auto``. Empty if all rules are in the package."""
    if not tries_rules(results):
        return []
    lines = ["| rule | seeds | saved at equal quality, against `auto` |", "|---|---|---|"]
    lines += [
        f"| `{tables.typed(row.arm)}` | {len(row.seeds)} | {row.text} |"
        for row in differences(results)
    ]
    return [*lines, "", CAPTION, ""]


def finding(results: Results) -> str:
    """What a comparison says. If it tries rules: which save more or less than ``auto``, by intervals that exclude 0."""
    if not tries_rules(results):
        return tables.finding(results)
    rows = differences(results)
    more = [row for row in rows if row.low is not None and row.low > 0]
    less = [row for row in rows if row.high is not None and row.high < 0]
    return (
        "Nothing is recommended here, because these rules are not all in the package: the question is how they differ from `auto`. Beyond "
        f"95% intervals, for each rule by itself, these of {len(rows)} save more at equal quality: {_named(more)}; and these less: "
        f"{_named(less)}."
    )


def _named(rows: Sequence[SavingDifference]) -> str:
    return ", ".join(f"`{tables.typed(row.arm)}`, {row.text}" for row in rows) or "none"
