"""The report's tables: rows of text from the results."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infobatch.lab.compare.answer import earlier_words, matched_name
from infobatch.lab.compare.results import Results
from infobatch.lab.stats.intervals import Estimate, binomial_standard_error, decimals, estimate
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, Record, Summary, mean_and_deviation
from infobatch.lab.stats.verdict import Verdict

NONE = "–"


@dataclass(frozen=True)
class FrontierRow:
    """An arm at a length: its quality, its saving, and its verdict."""

    arm: str
    length: str
    metric: str
    passes_saved: str
    saving: str
    to_full: str
    to_shorter: str
    to_random: str
    word: str


def frontier_rows(results: Results, summaries: Sequence[Summary]) -> list[FrontierRow]:
    """All trained arms and lengths, including full data's own curve."""
    digits = decimals(results.settings.margin)
    verdicts = {(row.arm, row.length): row for row in results.conclusions.verdicts}
    rows = []
    for summary in summaries:
        point = results.point(summary.arm, summary.length)
        verdict = verdicts.get((summary.arm, summary.length))
        rows.append(
            FrontierRow(
                arm=matched_name(summary, results.settings.arms),
                length=f"{summary.length:g}",
                metric=mean_and_deviation(summary.metric, digits)
                + (f" ({summary.diverged} diverged)" if summary.diverged else ""),
                passes_saved=f"{summary.saved_fraction:.1%}",
                saving=point.saving.text if point and point.saving else NONE,
                to_full=_in_words(point.to_full if point else None, digits),
                to_shorter=_in_words(point.to_shorter if point else None, digits),
                to_random=_in_words(verdict.to_random if verdict else None, digits),
                word=_word(verdict, results) if verdict else NONE,
            )
        )
    return rows


def _in_words(difference: Estimate | None, digits: int) -> str:
    return NONE if difference is None else difference.in_words(digits)


def arm_rows(results: Results) -> list[tuple[str, str, str, str]]:
    """For each arm, what its lengths together save, and the cost and saving at full data's final quality."""
    frontier = results.conclusions.frontier
    if frontier is None:
        return []
    pooled = {row.arm: row.saving.text for row in frontier.pooled if row.saving is not None}
    rows = []
    for reach in frontier.reaches:
        if reach.saving is None or reach.cost is None:
            continue
        bound = {"at least": "at most ", "at most": "more than "}.get(reach.saving.bound or "", "")
        cost = f"{bound}{reach.cost:,.0f}"
        rows.append((reach.arm, pooled.get(reach.arm, NONE), cost, reach.saving.text))
    return rows


def rate_rows(results: Results) -> list[tuple[str, str, str, str, str]]:
    """Each arm's quality by learning rate, how far it is behind the best, and what was chosen."""
    digits = decimals(results.settings.margin)
    rows = []
    for rate in results.settings.rates:
        reached, behind = "diverged", NONE
        if rate.mean is not None and rate.behind is not None:
            reached = f"{rate.mean:.{digits}f}"
            reached += "" if rate.sd is None else f" ± {rate.sd:.{digits}f}"
            error = rate.standard_error
            behind = f"{rate.behind:.{digits}f}"
            behind += f" ± {error:.{digits}f}" if error and rate.behind else ""
        word = "chosen" if rate.chosen else "as good" if rate.tied else ""
        rows.append((rate.arm, f"{rate.learning_rate:g}", reached, behind, word))
    return rows


@dataclass(frozen=True)
class Card:
    """The verdict on an arm at full length."""

    arm: str
    word: str
    tone: str  # a class of the style sheet
    text: str
    cost: str


TONES = {
    "lossless": "lossless",
    "worse than the margin": "worse",
    "worse, perhaps within the margin": "worse",
    "not decided": "undecided",
}


def cards(results: Results, summaries: Sequence[Summary]) -> list[Card]:
    """A card for each arm that was trained at full length, except full data."""
    settings, conclusions = results.settings, results.conclusions
    by_arm = {summary.arm: summary for summary in summaries if summary.length == FULL_LENGTH}
    full = by_arm.get(FULL)
    arm_cards = []
    for verdict in conclusions.verdicts:
        summary = by_arm.get(verdict.arm)
        if verdict.length != FULL_LENGTH or summary is None:
            continue
        cost = f"{summary.samples_forwarded:,.0f} sample passes per run, "
        cost += f"{summary.saved_fraction:.1%} fewer than training on all data"
        if full is not None and full.seconds and conclusions.compared_seconds is not None:
            cost += f", in {summary.seconds / full.seconds:.0%} of the time"
        word = _word(verdict, results)
        text = verdict.text + earlier_words(verdict)
        if len(settings.seeds) == 1:  # the decision already says what that means
            text = f"{_on_one_seed(verdict, results)} against full data."
        arm_cards.append(
            Card(
                arm=matched_name(summary, settings.arms),
                word=word[0].upper() + word[1:],
                tone=TONES[verdict.word],
                text=text,
                cost=f"{cost}.",
            )
        )
    return arm_cards


def _word(verdict: Verdict, results: Results) -> str:
    """The verdict's word; none with one seed."""
    return "one seed" if len(results.settings.seeds) == 1 else verdict.word


def _on_one_seed(verdict: Verdict, results: Results) -> str:
    point = results.point(verdict.arm, verdict.length)
    text = _in_words(point.to_full if point else None, decimals(results.settings.margin))
    return f"{text} {results.settings.unit}".rstrip()


def extra_metrics(
    records: Sequence[Record], summaries: Sequence[Summary]
) -> dict[str, dict[tuple[str, float], str]]:
    """The finished models' other metrics as text: by metric, then by arm and length."""
    names = dict.fromkeys(name for record in records for name in record.extra_metrics)
    texts: dict[str, dict[tuple[str, float], str]] = {name: {} for name in names}
    for name in names:
        for summary in summaries:
            values = [
                value
                for record in records
                if (record.arm, record.length) == (summary.arm, summary.length)
                and (value := record.extra_metrics.get(name)) is not None
            ]
            text = NONE
            if values:
                mean = estimate(values)
                text = f"{mean.mean:.4g}" + ("" if mean.sd is None else f" ± {mean.sd:.2g}")
            texts[name][summary.arm, summary.length] = text
    return texts


def test_set_note(results: Results, summaries: Sequence[Summary]) -> str:
    """How much the test set's size matters, if the metric counts its items."""
    settings = results.settings
    full = next(
        (summary for summary in summaries if (summary.arm, summary.length) == (FULL, FULL_LENGTH)),
        None,
    )
    items = {run.num_test for run in results.runs}
    if not settings.counts_items or full is None or full.metric is None or len(items) != 1:
        return ""
    (count,) = items
    error = binomial_standard_error(full.metric.mean, count)
    return (
        f"The test set is a sample, too: with {count:,} items, {settings.metric} has a binomial "
        f"standard error of {error:.2f} {settings.unit}".rstrip()
        + ". No interval here includes it, because every run is evaluated on the same items."
    )


RUN_COLUMNS = ("arm", "length", "seed", "metric", "saved_fraction")
COST_COLUMNS = (
    "samples_forwarded", "samples_backpropagated", "optimizer_steps", "seconds", "cpu_seconds",
    "overhead_seconds", "evaluation_seconds", "peak_memory_mb",
)  # fmt: skip


def csv_address(records: Sequence[Record]) -> str:
    """The individual runs as a ``data:`` URI of a CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*RUN_COLUMNS, *COST_COLUMNS])
    for record in records:
        cells = [getattr(record, name) for name in RUN_COLUMNS]
        writer.writerow([*cells, *(getattr(record.costs, name) for name in COST_COLUMNS)])
    return f"data:text/csv;base64,{base64.b64encode(file.getvalue().encode()).decode()}"


def setting_rows(runs: Sequence[Record]) -> dict[str, str]:
    """The runs' settings as text: one value, or each arm's if they differ."""
    seen: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name in ("task", "arm", "seed", "options", "budget"):
                continue
            values = seen.setdefault(name, {}).setdefault(run.arm, [])
            text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            if value not in (None, {}) and text not in values:
                values.append(text)
    return {name: _by_arm(values) for name, values in seen.items() if any(values.values())}


def _by_arm(values: Mapping[str, Sequence[str]]) -> str:
    if len({tuple(texts) for texts in values.values()}) == 1:
        return ", ".join(next(iter(values.values())))
    return "; ".join(f"{arm}: {', '.join(texts)}" for arm, texts in values.items() if texts)


def machine_rows(results: Results) -> dict[str, str]:
    """The machine, the date and the duration of the comparison."""
    runs = results.runs
    if not runs:
        return {}
    kinds = list(dict.fromkeys(tuple(run.hardware.items()) for run in runs))
    rows = {
        name: "; ".join(dict.fromkeys(str(dict(kind).get(name, NONE)) for kind in kinds))
        for name in dict.fromkeys(name for kind in kinds for name, _ in kind)
    }
    days = sorted({run.finished_at[:10] for run in runs})
    rows["date"] = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    seconds = sum(run.costs.seconds + run.costs.evaluation_seconds for run in runs) + sum(
        run.seconds for run in results.settings.tried_rates
    )
    rows["total time of all runs"] = _duration(seconds)
    return rows


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
