"""Print what the README and docs/results say about the demo, from its stored results; or write it there.

python benchmarks/demo_summary.py
python benchmarks/demo_summary.py --write README.md docs/results/index.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from infobatch.lab.compare.answer import headline, points
from infobatch.lab.compare.results import read_results
from infobatch.lab.stats.outcome import decimals
from infobatch.lab.stats.records import read_record
from infobatch.lab.stats.summary import Summary, mean_and_deviation, summarise

RESULTS = Path(__file__).parent / "results" / "demo"
NAMES = {
    "random": "random pruning, as much as `infobatch`",
    "infobatch": "`infobatch` (the paper's mean rule)",
    "quantile": "`quantile` (the paper's two-band rule)",
}
BEGIN, END = "<!-- printed by `python benchmarks/demo_summary.py` -->\n", "<!-- end -->\n"


def summary() -> str:
    """What was compared and what it says, then a row for each arm, all data at every length."""
    results = read_results(RESULTS)
    sizes = {(run["num_samples"], run["num_test"]) for run in results["runs"]}
    ((train, test),) = sizes
    count = len(results["seeds"])
    seeds = f"{count} seeds, ± their standard deviation" if count > 1 else "one seed"
    command = results["command"].partition(" --out")[0]
    lines = [
        f"`{command}`: {train:,} images of Fashion-MNIST, shifted and flipped, "
        f"a small CNN, {test:,} test images, {seeds}. It says:",
        "",
        f"> {headline(results)}",
        "",
        *table(results),
    ]
    return "\n".join(lines) + "\n"


def table(results: dict[str, Any]) -> list[str]:
    """A row for all data at each length, then for each arm at full length."""
    metric = results["metric"]
    lines = [
        f"| training | test {metric} | sample passes saved | saved at equal quality | against all data |",
        "|---|---|---|---|---|",
    ]
    words = {(row["arm"], row["length"]): row["outcome"]["word"] for row in results["verdicts"]}
    for row in summarise(map(read_record, results["runs"]), arms=results["arms"]):
        if row.arm != "full" and row.length < 1:
            continue
        saving = (points(results).get((row.arm, row.length)) or {}).get("saving")
        cells = (
            name_of(row, results),
            mean_and_deviation(row.metric, decimals(results["margin"])),
            f"{row.saved_fraction:.1%}",
            "–" if saving is None else saving["text"],
            words.get((row.arm, row.length), "–"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def name_of(row: Summary, results: dict[str, Any]) -> str:
    """How the README calls an arm."""
    if row.arm == "full":
        return f"all data, {row.length * results['epochs']:.3g} epochs"
    return NAMES.get(row.arm, f"`{row.arm}`")


def write_into(page: Path) -> None:
    """Put the summary between the two marks of a page."""
    text = page.read_text()
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not marked.search(text):
        sys.exit(f"{page} has no lines {BEGIN.strip()} and {END.strip()}.")
    page.write_text(marked.sub(lambda _: f"{BEGIN}{summary()}{END}", text))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        for page in sys.argv[2:]:
            write_into(Path(page))
    else:
        print(summary(), end="")
