"""Write the pages of results, their figures and the README's table from the stored JSON; or check them.

    python benchmarks/evidence/pages.py            # what `make results` runs
    python benchmarks/evidence/pages.py --check    # fails where a page and its JSON disagree

A page has prose, which is written by hand, and blocks between marks, which are written here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from differences import differences_table, finding
from figure import FIRST_PICTURE, draw, draw_saving, is_current
from forecasts import forecast_block
from screens import screen_tables
from stored import (
    ROOT,
    STORED,
    is_stored,
    largest_difference,
    shared_runs,
    shown_results,
    stored_results,
)
from studies import DEMO, STUDIES, Study
from tables import (
    arms_table,
    coreset_table,
    how_it_was_made,
    is_coreset,
    regimes_table,
    rules_table,
    savings_table,
    seconds_table,
    table,
    typed,
    unfinished,
)

from infobatch.lab.compare.results import Results
from infobatch.lab.stats.intervals import decimals
from infobatch.lab.stats.runs import Record, label_of

PAGES = ROOT / "docs" / "results"
PICTURES = ROOT / "docs" / "images"
EXPLAINED = (
    "*Saved at equal quality* is what an arm saves against training on all data for fewer epochs, from its lengths from 0.6 to 1 "
    "together. *Against all data at full length* has sample passes and quality (above zero is better) at one length that the arm was "
    "trained for: the shortest whose mean is at least as good as that of all data or, if none is, the longest. In brackets: 95% intervals "
    "over seeds ([how they are made](../lab.md#why-lengths))."
)
BEGIN, END = "<!-- written by `make results` -->\n", "<!-- end -->\n"


def main() -> None:
    pages = {page: text for page, text in written_pages() if text != old_text(page)}
    pictures = [
        (folder, picture) for folder, picture in figures() if not is_current(picture, folder)
    ]
    stale = [*pages, *(picture for _, picture in pictures)]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"Not what is stored: {names}. Run: make results")
        return
    for page, text in pages.items():
        page.write_text(text)
    for folder, picture in pictures:
        (draw_saving if picture.name == FIRST_PICTURE else draw)(folder, picture)
    for path in stale:
        print(f"Wrote {path.relative_to(ROOT)}")


def written_pages() -> Iterator[tuple[Path, str]]:
    """Every page with the text that it should have."""
    for page, rows in (
        (ROOT / "README.md", regimes_table(frontiers("docs/results/"))),
        (PAGES / "seconds.md", seconds_table(timed_curves())),
    ):
        yield page, with_block(page, "\n".join(rows) + "\n")
    yield PAGES / "demo.md", with_block(PAGES / "demo.md", demo_block())
    yield PAGES / "forecast.md", with_block(PAGES / "forecast.md", forecast_block())
    yield PAGES / "rules.md", with_block(PAGES / "rules.md", screens_block())
    stored = [study for study in STUDIES if study != DEMO and is_stored(study.name)]
    for study in stored:
        yield PAGES / f"{study.name}.md", study_page(study)
    yield PAGES / "index.md", with_block(PAGES / "index.md", index_block(stored))


def figures() -> Iterator[tuple[Path, Path]]:
    """Every folder of results that has a figure, and the figure."""
    for study in STUDIES:
        folder = STORED / study.name
        if study.has_curve and is_stored(study.name):
            yield folder, PICTURES / f"{'frontier' if study == DEMO else study.name}.png"
    yield STORED / DEMO.name, PICTURES / FIRST_PICTURE


def curves(folder: str) -> Iterator[tuple[str, str, Results]]:
    """Each stored comparison with lengths: its name, its page, which is in ``folder``, and its results."""
    for study in STUDIES:
        if study.has_curve and is_stored(study.name):
            name = study.headline or study.title
            yield name, f"{folder}{study.name}.md", shown_results(study.name)


def judged_curves(folder: str) -> Iterator[tuple[str, str, Results]]:
    """Those of them whose savings mean something."""
    pages = {f"{folder}{study.name}.md" for study in STUDIES if not study.caveat}
    return (row for row in curves(folder) if row[1] in pages)


def timed_curves() -> Iterator[tuple[str, str, Results]]:
    """Those without runs of another study, which were made at another time, perhaps on another machine."""
    follow_ups = {f"{study.name}.md" for study in STUDIES if study.reuses}
    return (row for row in curves("") if row[1] not in follow_ups)


def frontiers(folder: str) -> Iterator[tuple[str, str, Results]]:
    """Those of them that are a row of the README's table."""
    pages = {f"{folder}{study.name}.md" for study in STUDIES if study.in_readme}
    return (row for row in curves(folder) if row[1] in pages)


def demo_block() -> str:
    """What was compared and what it says, then a row for each arm."""
    results = shown_results(DEMO.name)
    ((train, test),) = {(run.num_samples, run.num_test) for run in results.runs}
    count = len(results.settings.seeds)
    made = how_it_was_made(results)
    lines = [
        f"Four rules at four lengths with {count} seeds, and the pruned arms also for {max(results.settings.lengths):g} × the epochs, added when the others had been seen: {train:,} images of Fashion-MNIST, shifted and flipped, a small CNN, {test:,} "
        f"test images; {made[0].lower()}{made[1:]}{not_yet(DEMO, results)} The decision:",
        "",
        f"> {finding(results)}",
        "",
        *arms_table(results),
        "",
        EXPLAINED + in_common(DEMO),
        "",
        *table(results),
    ]
    return "\n".join(lines) + "\n"


def screens_block() -> str:
    """The tables of each screen under its optimizer."""
    lines = []
    for optimizer, name in (("SGD", "fashion"), ("AdamW", "adamw")):
        tables = screen_tables(STORED / "screen" / f"{name}.json")
        lines += ["", f"### With {optimizer}", "", *tables[:-1]]
    return "\n".join([*lines, ""]) + "\n"


def study_page(study: Study) -> str:
    """A whole page."""
    results = shown_results(study.name)
    has_subsets = any(map(is_coreset, results.settings.arms))
    subsets = [*coreset_table(results, study.paper), ""] if has_subsets else []
    lines = [f"# {study.title}", "", *([study.caveat, ""] if study.caveat else [])]
    lines += [label_of(study.says), ""]
    if study.has_curve:
        lines += [f"![quality against cost](../images/{study.name}.png)", ""]
    lines += [
        f"> {finding(results)}",
        "",
        *([*arms_table(results), "", EXPLAINED, ""] if study.has_curve else []),
        *differences_table(results),
        *table(results, every_length=study.has_curve, paper=study.paper),
        "",
        *subsets,
        how_it_was_made(results) + not_yet(study, results) + in_common(study),
        "",
        f"Repeat it: `{stored_results(study.name).settings.command}`. Raw data: `benchmarks/results/{study.name}/results.json`, in "
        "[this format](../results-schema.md).",
    ]
    return "\n".join(lines) + "\n"


def not_yet(study: Study, results: Results) -> str:
    """Which arms and lengths of a study have no runs yet, or too few seeds to be shown; empty if none."""
    made = {(row.arm, row.length) for row in results.summaries}
    few = unfinished(results)
    missing: dict[str, list[str]] = {}
    for arm, length in study.cells:
        if not made & {(arm, length), (label_of(arm), length)} and label_of(arm) not in few:
            missing.setdefault(label_of(arm), []).append(f"{length:g}")
    parts = [f"`{typed(arm)}` at {', '.join(lengths)}" for arm, lengths in missing.items()]
    parts += [f"`{typed(arm)}` ({few[arm]} of {study.seeds} seeds, not shown)" for arm in few]
    return f" Stated, but not trained yet (length): {'; '.join(parts)}." if parts else ""


def in_common(study: Study) -> str:
    """Which other pages show some of the same runs; empty if none does."""
    stored = {other.name: other for other in STUDIES if is_stored(other.name)}
    shared = shared_runs(study.name, list(stored))
    if not shared:
        return ""
    pages = ", ".join(
        f"{len(pairs)} of [{stored[name].title}]({name}.md)" for name, pairs in shared.items()
    )
    return f" Not independent of other pages: these runs include {pages}." + repeated(study, shared)


def repeated(study: Study, shared: Mapping[str, list[tuple[Record, Record]]]) -> str:
    """By how much shared runs differ that were made again; empty if none does."""
    count, largest = largest_difference(chain.from_iterable(shared.values()))
    if not count:
        return ""
    settings = stored_results(study.name).settings
    difference = f"{largest:.{decimals(settings.margin)}f} {settings.unit}".rstrip()
    return (
        f" Of these, {count} that were made again on another machine differ, by up to {difference}."
    )


def index_block(stored: list[Study]) -> str:
    """What every arm saves, then a line for each page: its title and what it says."""
    lines = [
        *rules_table(frontiers("")),
        "",
        "The same for every arm, with what it takes to be as good as all data:",
        "",
        *savings_table(judged_curves("")),
        "",
        EXPLAINED + " Runs that several studies share stand under the first of them only.",
        "",
        "| what | it says |",
        "|---|---|",
    ]
    for study in stored:
        words = f"{study.caveat} {finding(shown_results(study.name))}".lstrip()
        lines.append(f"| [{study.title}]({study.name}.md) | {words} |")
    return "\n".join(lines) + "\n"


def with_block(page: Path, block: str) -> str:
    """A page's text with the block between the two marks replaced."""
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    text = page.read_text()
    if len(marked.findall(text)) != 1:
        sys.exit(f"{page} needs the lines {BEGIN.strip()} and {END.strip()} once.")
    return marked.sub(lambda _: f"{BEGIN}{block}{END}", text)


def old_text(page: Path) -> str | None:
    return page.read_text() if page.exists() else None


if __name__ == "__main__":
    main()
