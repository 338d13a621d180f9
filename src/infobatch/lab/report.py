"""The report of a comparison: one page that stands by itself, without scripts and without network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from infobatch.lab import figures
from infobatch.lab.arms import FULL, INFOBATCH, Arm
from infobatch.lab.details import Details, read_details, read_sweep
from infobatch.lab.files import write_atomically
from infobatch.lab.intervals import t_interval
from infobatch.lab.pictures import data_uri
from infobatch.lab.results import read_results, run_folder
from infobatch.lab.summary import ArmSummary, finite, summarise
from infobatch.lab.verdict import Verdict, decimals, described, judge

LONGEST_TEXT = 700
REQUIRED = ("task", "metric", "higher_is_better", "margin", "arms", "seeds", "runs")


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
    """Write ``report.html`` beside the results of a comparison, finished or not."""
    results = read_results(out)
    missing = [name for name in REQUIRED if name not in results]
    if missing:
        raise ValueError(
            f"The results in {out} lack {', '.join(missing)}. Expected the --out folder of "
            "`infobatch compare`; run it again, finished runs are not repeated."
        )
    folder = out if out.is_dir() else out.parent
    page = render(results, folder)
    path = folder / "report.html"
    write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def render(results: Mapping[str, Any], folder: Path) -> str:
    """The page's text; ``folder`` has the runs' own folders."""
    runs: Sequence[Mapping[str, Any]] = results["runs"]
    metric, margin = str(results["metric"]), float(results["margin"])
    summaries = summarise(runs, arms=results["arms"])
    arms = [summary.arm for summary in summaries]
    looks = figures.looks_of(arms)
    verdicts = sorted(
        judge(
            runs,
            metric=metric,
            margin=margin,
            higher_is_better=results["higher_is_better"],
            arms=arms,
        ),
        key=lambda verdict: _interest(verdict.arm),
    )
    details = [
        read_details(run_folder(folder, run["arm"], run["seed"]), arm=run["arm"], seed=run["seed"])
        for run in sorted(runs, key=lambda run: (_interest(run["arm"]), run["arm"], run["seed"]))
    ]
    pictured = _first_by_arm([one for one in details if one.snapshot is not None])
    classes = [shares for one in pictured if (shares := figures.class_shares(one)) is not None]
    shown = _to_show(details)
    environment = Environment(
        loader=PackageLoader("infobatch.lab"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, decimal=decimal, percent=percent, score=score)
    pruned = {arm: look for arm, look in looks.items() if Arm(arm).prunes}
    return environment.get_template("report.html.jinja").render(
        results=results,
        smoke=bool(results.get("smoke")),
        wanted=len(results["arms"]) * len(results["seeds"]),
        digits=decimals(margin),
        cards=_cards(verdicts, summaries),
        differences=_difference_rows(verdicts),
        difference_figure=figures.differences(verdicts, looks=looks),
        summaries=summaries,
        extra_metrics=_extra_metrics(runs, arms),
        cost_figures=[
            figure
            for cost, label in (("samples_forwarded", "sample passes"), ("seconds", "seconds"))
            if (
                figure := figures.against_cost(
                    runs, summaries, cost=cost, cost_label=label, metric=metric, looks=looks
                )
            )
        ],
        kept_figure=figures.kept_fraction(runs, looks=pruned),
        threshold_figure=figures.threshold(runs, looks=pruned),
        loss_figures=_loss_figures(pictured, looks),
        visits_figure=figures.visits(details, looks=looks),
        class_figure=figures.kept_by_class(classes, looks=looks),
        classes=classes,
        shown=shown,
        easiest=_samples(shown, shown.easiest) if shown else [],
        hardest=_samples(shown, shown.hardest) if shown else [],
        curves=figures.learning_curves(runs, metric=metric, looks=looks),
        sweep=read_sweep(folder, chosen=results.get("chosen_rates") or {}),
        settings=_settings(runs),
        versions=results.get("versions") or (runs[0]["versions"] if runs else {}),
    )


def _interest(arm: str) -> int:
    """What a reader wants to know of first: infobatch, the other policies, then the baselines."""
    ranks = (arm == INFOBATCH, not Arm(arm).follows and arm != FULL, arm != FULL)
    return ranks.index(True) if True in ranks else len(ranks)


# The verdict.


def _cards(
    verdicts: Sequence[Verdict], summaries: Sequence[ArmSummary]
) -> list[tuple[Verdict, ArmSummary, float | None]]:
    """Each verdict with the arm's costs, and its seconds as a share of what full took."""
    by_arm = {summary.arm: summary for summary in summaries}
    full = by_arm[FULL].seconds if FULL in by_arm else None
    cards = []
    for verdict in verdicts:
        own = by_arm[verdict.arm]
        cards.append((verdict, own, own.seconds / full if own.seconds and full else None))
    return cards


def _difference_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, dict[str, str]]]:
    """For each arm its differences in words, by the arm that it is compared with."""

    return [
        (
            verdict.arm,
            {
                one.to: described(one, decimals(verdict.margin), named="")
                for one in verdict.differences
            },
        )
        for verdict in verdicts
    ]


def _extra_metrics(
    runs: Sequence[Mapping[str, Any]], arms: Sequence[str]
) -> dict[str, dict[str, str]]:
    """What else the finished models were measured by: in words, by metric and arm."""
    names = {name: None for run in runs for name in run.get("extra_metrics") or {}}
    found: dict[str, dict[str, str]] = {}
    for name in names:
        for arm in arms:
            own = [run.get("extra_metrics", {}).get(name) for run in runs if run["arm"] == arm]
            told = _mean_and_deviation([value for value in own if finite(value)])
            found.setdefault(name, {})[arm] = told
    return found


def _mean_and_deviation(values: Sequence[float]) -> str:
    interval = t_interval(values)
    if interval is None:
        return "–"
    return f"{interval.mean:.4g}" + (f" ± {interval.sd:.2g}" if interval.sd is not None else "")


# Samples.


def _first_by_arm(details: Sequence[Details]) -> list[Details]:
    first: dict[str, Details] = {}
    for one in details:
        first.setdefault(one.arm, one)
    return list(first.values())


def _to_show(details: Sequence[Details]) -> Details | None:
    """The run whose easiest and hardest samples stand in the page: the first that has left them."""
    return next((one for one in details if one.easiest or one.hardest), None)


def _samples(details: Details, indices: Sequence[int]) -> list[Sample]:
    return [_sample(details, index) for index in indices]


def _sample(details: Details, index: int) -> Sample:
    shown = details.samples.get(index)
    text = shown if isinstance(shown, str) else None
    if text is not None and len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + " …"
    return Sample(
        index=index,
        score=None if details.scores is None else float(details.scores[index]),
        label=None if details.labels is None else str(details.labels[index]),
        visits=None if details.visits is None else int(details.visits[index]),
        picture=None if shown is None or text is not None else data_uri(shown),
        text=text,
    )


def _loss_figures(
    pictured: Sequence[Details], looks: Mapping[str, figures.Look]
) -> list[tuple[Details, Markup]]:
    drawn = ((one, figures.loss_distribution(one, look=looks[one.arm])) for one in pictured)
    return [(one, figure) for one, figure in drawn if figure is not None]


# Settings.


def _settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The runs' settings in words: one value, or each arm's where they differ."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for name, value in run["settings"].items():
            if name in ("task", "arm", "seed"):
                continue
            values = found.setdefault(name, {}).setdefault(run["arm"], [])
            told = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            if value not in (None, {}) and told not in values:
                values.append(told)
    return {name: _by_arm(values) for name, values in found.items() if any(values.values())}


def _by_arm(values: Mapping[str, Sequence[str]]) -> str:
    if len({tuple(own) for own in values.values()}) == 1:
        return ", ".join(next(iter(values.values())))
    return "; ".join(f"{arm}: {', '.join(own)}" for arm, own in values.items() if own)


# Numbers in words.


def number(value: float | None) -> str:
    """A count, with thousands apart."""
    return "–" if value is None else f"{value:,.0f}"


def score(value: float | None) -> str:
    """A sample's score, large or tiny."""
    if value is None or not math.isfinite(value):
        return "–"
    return "under 0.001" if 0 < value < 0.001 else f"{value:.3g}"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{value:.1%}"
