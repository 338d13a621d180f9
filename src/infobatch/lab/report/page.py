"""The report of a comparison: one self-contained page without scripts or network access.

It draws no conclusions: they are read from results.json.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from infobatch.files import write_atomically
from infobatch.lab.compare.answer import (
    added_seeds,
    grid_note,
    headline,
    machines_note,
    matched_note,
    stopping_note,
)
from infobatch.lab.compare.results import Results, labelled, read_results, run_folder
from infobatch.lab.report import epoch_figures, frontier_figures, sample_figures, tables
from infobatch.lab.report.details import Details, read_details
from infobatch.lab.report.looks import Look, looks_of
from infobatch.lab.report.pictures import data_uri
from infobatch.lab.run.arms import INFOBATCH, Arm
from infobatch.lab.stats.forecasts import forecast_of
from infobatch.lab.stats.frontier import Frontier
from infobatch.lab.stats.intervals import decimals
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, Cost, Summary, label_of

LONGEST_TEXT = 700


@dataclass(frozen=True)
class Sample:
    """One training sample on the page: a picture, a text, or neither."""

    index: int
    score: float | None
    label: str | None
    visits: int | None
    picture: str | None
    text: str | None


def write_report(out: Path) -> Path:
    """Write ``report.html`` next to the results of a comparison, finished or not."""
    results = read_results(out)
    folder = out if out.is_dir() else out.parent
    page = render(results, folder)
    path = folder / "report.html"
    write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def render(results: Results, folder: Path) -> str:
    """The page's HTML; ``folder`` contains the runs' folders."""
    by_sample, results = _by_sample(results, folder), labelled(results)
    settings, summaries = results.settings, results.summaries
    cells = [(arm, length) for arm in settings.arms for length in settings.lengths]
    return template("report.html.jinja").render(
        settings=settings,
        conclusions=results.conclusions,
        runs=results.runs,
        headline=headline(results),
        tone=_tone(results),
        added_seeds=added_seeds(results),
        stopping_note=stopping_note(results),
        wanted=len(cells) * len(settings.seeds),
        digits=decimals(settings.margin),
        margin=f"{settings.margin:g} {settings.unit}".rstrip(),
        cards=tables.cards(results, summaries),
        rows=tables.frontier_rows(results, summaries),
        arm_rows=tables.arm_rows(results),
        matched_note=matched_note(results),
        test_set_note=tables.test_set_note(results, summaries),
        grid_note=grid_note(results),
        machines_note=machines_note(results),
        rate_rows=tables.rate_rows(results),
        summaries=summaries,
        extra_metrics=tables.extra_metrics(results.runs, summaries),
        csv=tables.csv_address(results.runs),
        run_settings=tables.setting_rows(results.runs),
        machine=tables.machine_rows(results),
        **_figures(results, summaries),
        **by_sample,
    )


def template(name: str) -> Template:
    """A template of the report, with its number formats."""
    environment = Environment(
        loader=PackageLoader("infobatch.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number, decimal=decimal, percent=percent, score=score, code=code
    )
    return environment.get_template(name)


def _tone(results: Results) -> str:
    """The colour of the decision: a class of the style sheet."""
    decision = results.conclusions.decision
    kind = "not decided" if decision is None else decision.kind
    tones = {"use": "lossless", "use instead of shorter training": "undecided"}
    tones["not decided"] = "undecided"
    return tones.get(kind, "worse")


def _figures(results: Results, summaries: Sequence[Summary]) -> dict[str, Any]:
    """The figures that need only results.json."""
    settings, conclusions = results.settings, results.conclusions
    metric, margin = settings.metric, settings.margin
    looks = looks_of(settings.arms)
    pruned = {arm: look for arm, look in looks.items() if Arm(arm).prunes}
    longest = [run for run in results.runs if run.length == FULL_LENGTH]
    frontiers: dict[Cost, Frontier | None] = {"samples_forwarded": conclusions.frontier}
    if conclusions.compared_seconds is not None:
        frontiers[conclusions.compared_seconds] = conclusions.frontier_by_seconds
    return {
        "cost_figures": [
            figure
            for cost, frontier in frontiers.items()
            if (
                figure := frontier_figures.quality_against_cost(
                    summaries, frontier, cost=cost, metric=metric, margin=margin, looks=looks
                )
            )
        ],
        "difference_figure": frontier_figures.differences(
            conclusions.frontier, margin=margin, unit=settings.unit, looks=looks
        ),
        "rate_figure": frontier_figures.quality_against_rate(
            settings.rates, settings.tried_rates, metric=metric, margin=margin, looks=looks
        ),
        "forecast_figure": epoch_figures.forecast(forecast_of(results.runs), looks=looks),
        "kept_figure": epoch_figures.kept_fraction(longest, looks=pruned),
        "threshold_figure": epoch_figures.threshold(longest, looks=pruned),
        "curves": epoch_figures.learning_curves(longest, metric=metric, looks=looks),
    }


def _by_sample(results: Results, folder: Path) -> dict[str, Any]:
    """The figures that need the folders of the full-length runs."""
    names = results.settings.class_names
    looks = looks_of(list(map(label_of, results.settings.arms)))
    longest = [run for run in results.runs if run.length == FULL_LENGTH]
    details = [
        read_details(
            run_folder(folder, run.arm, run.seed, length=FULL_LENGTH),
            arm=label_of(run.arm),
            seed=run.seed,
        )
        for run in sorted(longest, key=lambda run: (_interest(run.arm), run.arm, run.seed))
    ]
    pictured = _first_by_arm([detail for detail in details if detail.snapshot is not None])
    shares = (sample_figures.class_shares(detail, names) for detail in pictured)
    classes = [detail for detail in shares if detail is not None]
    shown = next((detail for detail in details if detail.easiest or detail.hardest), None)
    return {
        "loss_figures": _loss_figures(pictured, looks),
        "visits_figure": sample_figures.visits(details, looks=looks),
        "class_figure": sample_figures.kept_by_class(classes, looks=looks),
        "classes": classes,
        "shown": shown,
        "easiest": _samples(shown, shown.easiest, names) if shown else [],
        "hardest": _samples(shown, shown.hardest, names) if shown else [],
    }


def _interest(arm: str) -> int:
    """The order of interest: infobatch, the other policies, then the baselines."""
    ranks = (arm == INFOBATCH, not Arm(arm).follows and arm != FULL, arm != FULL)
    return ranks.index(True) if True in ranks else len(ranks)


# Samples.


def _first_by_arm(details: Sequence[Details]) -> list[Details]:
    first: dict[str, Details] = {}
    for detail in details:
        first.setdefault(detail.arm, detail)
    return list(first.values())


def _samples(details: Details, indices: Sequence[int], names: Sequence[str]) -> list[Sample]:
    return [_sample(details, index, names) for index in indices]


def _sample(details: Details, index: int, names: Sequence[str]) -> Sample:
    shown = details.samples.get(index)
    text = shown if isinstance(shown, str) else None
    if text is not None and len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + " …"
    labels = details.labels
    return Sample(
        index=index,
        score=None if details.scores is None else float(details.scores[index]),
        label=None if labels is None else sample_figures.class_name(labels[index], names),
        visits=None if details.visits is None else int(details.visits[index]),
        picture=None if shown is None or text is not None else data_uri(shown),
        text=text,
    )


def _loss_figures(
    pictured: Sequence[Details], looks: Mapping[str, Look]
) -> list[tuple[Details, Markup]]:
    drawn = (
        (detail, sample_figures.loss_distribution(detail, look=looks[detail.arm]))
        for detail in pictured
    )
    return [(detail, figure) for detail, figure in drawn if figure is not None]


# Formats.


def code(text: str) -> Markup:
    """A sentence with names in backquotes, as HTML."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def number(value: float | None) -> str:
    """A count with thousands separators."""
    return "–" if value is None else f"{value:,.0f}"


def score(value: float | None) -> str:
    """A sample's score, large or tiny."""
    if value is None or not math.isfinite(value):
        return "–"
    return "under 0.001" if 0 < value < 0.001 else f"{value:.3g}"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with ``digits`` decimals."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{value:.1%}"
