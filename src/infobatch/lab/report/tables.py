"""The report's tables: rows of text from results.json."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infobatch.lab.compare.answer import flips, matched_name, points
from infobatch.lab.stats.contrast import contrast
from infobatch.lab.stats.outcome import decimals, signed
from infobatch.lab.stats.precision import binomial_standard_error
from infobatch.lab.stats.records import FULL, FULL_LENGTH, Record
from infobatch.lab.stats.summary import Summary, mean_and_deviation

Results = Mapping[str, Any]
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
    digits = decimals(results["margin"])
    verdicts = {(row["arm"], row["length"]): row for row in results["verdicts"]}
    rows = []
    for summary in summaries:
        cell = (summary.arm, summary.length)
        point, verdict = points(results).get(cell, {}), verdicts.get(cell, {})
        rows.append(
            FrontierRow(
                arm=matched_name(summary, results["arms"]),
                length=f"{summary.length:g}",
                metric=mean_and_deviation(summary.metric, digits)
                + (f" ({summary.diverged} diverged)" if summary.diverged else ""),
                passes_saved=f"{summary.saved_fraction:.1%}",
                saving=(point.get("saving") or {}).get("text", NONE),
                to_full=in_words(point.get("to_full"), digits),
                to_shorter=in_words(point.get("to_shorter"), digits),
                to_random=in_words(verdict.get("to_random"), digits),
                word=_word(verdict, results) if verdict else NONE,
            )
        )
    return rows


def in_words(difference: Mapping[str, Any] | None, digits: int) -> str:
    """A difference with its interval: ``−0.12 (−0.40 to +0.16)``."""
    if difference is None:
        return NONE
    text = signed(difference["mean"], digits)
    if difference["low"] is not None:
        text += f" ({signed(difference['low'], digits)} to {signed(difference['high'], digits)})"
    return text


def reach_rows(results: Results) -> list[tuple[str, str, str]]:
    """For each arm, the cost at which it reaches full data's final quality, and what that saves."""
    rows = []
    for reach in (results["frontier"] or {}).get("reaches", []):
        saving, full_cost = reach["saving"], reach["full_cost"]
        if saving is None or full_cost is None:
            continue
        cost = f"{(1 - saving['estimate']) * full_cost:,.0f}"
        bound = {"at least": "at most ", "at most": "more than "}.get(saving["bound"] or "", "")
        rows.append((reach["arm"], bound + cost, saving["text"]))
    return rows


def rate_rows(results: Results) -> list[tuple[str, str, str, str, str]]:
    """Each arm's quality by learning rate, how far it is behind the best, and a verdict."""
    digits = decimals(results["margin"])
    rows = []
    for rate in results["rates"]:
        reached, behind = "diverged", NONE
        if rate["mean"] is not None:
            reached = f"{rate['mean']:.{digits}f}"
            reached += "" if rate["sd"] is None else f" ± {rate['sd']:.{digits}f}"
            error = rate["standard_error"]
            behind = f"{rate['behind']:.{digits}f}"
            behind += f" ± {error:.{digits}f}" if error and rate["behind"] else ""
        word = "chosen" if rate["chosen"] else "as good" if rate["tied"] else ""
        rows.append((rate["arm"], f"{rate['learning_rate']:g}", reached, behind, word))
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
    by_point = {(each.arm, each.length): each for each in summaries}
    full = by_point.get((FULL, FULL_LENGTH))
    arm_cards = []
    for verdict in results["verdicts"]:
        summary = by_point.get((verdict["arm"], verdict["length"]))
        if verdict["length"] != FULL_LENGTH or summary is None:
            continue
        cost = f"{summary.samples_forwarded:,.0f} sample passes per run, "
        cost += f"{summary.saved_fraction:.1%} fewer than training on all data"
        if full is not None and full.seconds and results["compared_seconds"] is not None:
            cost += f", in {summary.seconds / full.seconds:.0%} of the time"
        word = _word(verdict, results)
        text = verdict["outcome"]["text"] + flips(verdict)
        if len(results["seeds"]) == 1:  # the decision already says what that means
            text = f"{_on_one_seed(verdict, results)} against full data."
        arm_cards.append(
            Card(
                arm=matched_name(summary, results["arms"]),
                word=word[0].upper() + word[1:],
                tone=TONES[verdict["outcome"]["word"]],
                text=text,
                cost=f"{cost}.",
            )
        )
    return arm_cards


def _word(verdict: Mapping[str, Any], results: Results) -> str:
    """The verdict's word; none with one seed."""
    return "one seed" if len(results["seeds"]) == 1 else str(verdict["outcome"]["word"])


def _on_one_seed(verdict: Mapping[str, Any], results: Results) -> str:
    cell = (verdict["arm"], verdict["length"])
    point = points(results)[cell]
    text = in_words(point["to_full"], decimals(results["margin"]))
    return f"{text} {results['unit']}".rstrip()


def extra_metrics(
    runs: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]
) -> dict[str, Any]:
    """The finished models' other metrics as text: by metric, then by arm and length."""
    names = dict.fromkeys(name for run in runs for name in run["extra_metrics"])
    texts: dict[str, dict[tuple[str, float], str]] = {name: {} for name in names}
    for name in names:
        for summary in summaries:
            values = [
                run["extra_metrics"].get(name)
                for run in runs
                if (run["arm"], run["length"]) == (summary.arm, summary.length)
            ]
            known = [float(value) for value in values if value is not None]
            text = NONE
            if known:
                mean = contrast(known)
                text = f"{mean.mean:.4g}" + ("" if mean.sd is None else f" ± {mean.sd:.2g}")
            texts[name][summary.arm, summary.length] = text
    return texts


def test_set_note(results: Results, summaries: Sequence[Summary]) -> str:
    """How much the test set's size matters, if the metric counts its items."""
    full = next(
        (summary for summary in summaries if (summary.arm, summary.length) == (FULL, FULL_LENGTH)),
        None,
    )
    items = {run["num_test"] for run in results["runs"]}
    if not results["counts_items"] or full is None or full.metric is None or len(items) != 1:
        return ""
    (count,) = items
    error = binomial_standard_error(full.metric.mean, count)
    return (
        f"The test set is a sample, too: with {count:,} items, {results['metric']} has a binomial "
        f"standard error of {error:.2f} {results['unit']}".rstrip()
        + ". No interval here includes it, because every run is evaluated on the same items."
    )


CSV_COLUMNS = (
    "arm", "length", "seed", "metric", "saved_fraction", "samples_forwarded",
    "samples_backpropagated", "optimizer_steps", "seconds", "cpu_seconds", "overhead_seconds",
    "evaluation_seconds", "peak_memory_mb",
)  # fmt: skip


def csv_address(records: Sequence[Record]) -> str:
    """The individual runs as a ``data:`` URI of a CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in records:
        writer.writerow([getattr(record, name) for name in CSV_COLUMNS])
    return f"data:text/csv;base64,{base64.b64encode(file.getvalue().encode()).decode()}"


def setting_rows(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The runs' settings as text: one value, or each arm's if they differ."""
    seen: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for name, value in run["settings"].items():
            if name in ("task", "arm", "seed", "options", "budget"):
                continue
            values = seen.setdefault(name, {}).setdefault(run["arm"], [])
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
    runs = results["runs"]
    if not runs:
        return {}
    kinds = list(dict.fromkeys(tuple(run["hardware"].items()) for run in runs))
    rows = {
        name: "; ".join(dict.fromkeys(str(dict(kind).get(name, NONE)) for kind in kinds))
        for name in dict.fromkeys(name for kind in kinds for name, _ in kind)
    }
    days = sorted({run["finished_at"][:10] for run in runs})
    rows["date"] = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    seconds = sum(
        run["costs"]["seconds"] + run["costs"]["evaluation_seconds"] for run in runs
    ) + sum(row["seconds"] for row in results["tried_rates"])
    rows["total time of all runs"] = _duration(seconds)
    return rows


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
