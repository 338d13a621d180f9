"""The printed answer of a comparison: the decision, then the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infobatch.lab.compare.results import Results, labelled
from infobatch.lab.stats.forecasts import forecast_note
from infobatch.lab.stats.intervals import ERROR_WITHOUT_DESIGN, decimals, signed
from infobatch.lab.stats.runs import FULL, FULL_LENGTH, RANDOM, SHORT, Summary, mean_and_deviation
from infobatch.lab.stats.verdict import Verdict

_ORDINARY_WIDTH = 80  # columns of a terminal


def print_answer(console: Console, results: Results) -> None:
    """Print the results, without truncation at any width or in a pipe."""
    results = labelled(results)
    console.print(Text(headline(results), style="bold"), soft_wrap=True)
    console.print(results_table(results, width=console.width))
    for line in notes(results):
        console.print(Text(line), soft_wrap=True)


def headline(results: Results) -> str:
    """The decision, in one or two sentences."""
    decision = results.conclusions.decision
    if decision is None:
        return "Not decided: no run on all data is finished yet."
    return decision.sentence


def results_table(results: Results, *, width: int = 0) -> Table:
    """Metric and cost by arm and length, the saving at equal quality, and a one-word verdict.

    Names and metrics are not broken if the console is known to have an ordinary ``width``.
    """
    settings, conclusions = results.settings, results.conclusions
    digits = decimals(settings.margin)
    several = len(settings.seeds) > 1
    seconds = conclusions.compared_seconds
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1))
    longest = max(map(len, settings.arms), default=0)
    whole = width >= _ORDINARY_WIDTH and longest <= _ORDINARY_WIDTH // 3
    table.add_column("arm", overflow="fold", no_wrap=whole)
    for name, left in (
        ("length", False),
        (settings.metric, False),
        ("passes saved", False),
        *([(seconds.replace("cpu_", "CPU "), False)] if seconds else []),
        ("saved at equal quality", False),
        ("against full", several),
    ):
        is_number = name == settings.metric
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=whole and is_number)
    words = {(verdict.arm, verdict.length): verdict.word for verdict in conclusions.verdicts}
    for row in results.summaries:
        point = results.point(row.arm, row.length)
        word: str = words.get((row.arm, row.length), "")
        if not several:  # a verdict takes three seeds; one seed only gives a difference
            to_full = None if point is None else point.to_full
            word = "" if to_full is None else signed(to_full.mean, digits)
        table.add_row(
            Text(f"{row.arm}*" if is_matched(row, settings.arms) else row.arm),
            f"{row.length:g}",
            mean_and_deviation(row.metric, digits),
            f"{row.saved_fraction:.1%}",
            *([f"{getattr(row, seconds):.1f}"] if seconds else []),
            "" if point is None or point.saving is None else point.saving.text,
            word,
        )
    return table


def is_matched(row: Summary, arms: Sequence[str]) -> bool:
    """Whether an arm has the same cost as another one, and is shown next to a third."""
    return row.leader is not None and _has_third(arms)


def _has_third(arms: Sequence[str]) -> bool:
    return len(set(arms) - {FULL, SHORT, RANDOM}) > 1


def matched_note(results: Results) -> str:
    """Whose cost the controls have, if they are shown next to a third arm; else empty."""
    arms = results.settings.arms
    matched = [arm for arm in arms if arm in (SHORT, RANDOM)]
    if not matched or not _has_third(arms):
        return ""
    verb = "has" if len(matched) == 1 else "have"
    return f"{' and '.join(matched)} {verb} the same cost as {results.settings.leader}."


def matched_name(row: Summary, arms: Sequence[str]) -> str:
    """An arm's name, if necessary with the arm whose cost it has."""
    return f"{row.arm} (cost of {row.leader})" if is_matched(row, arms) else row.arm


def notes(results: Results) -> list[str]:
    """Further notes: the gate, verdicts at full length, the level, the grid's cost."""
    conclusions = results.conclusions
    lines = [forecast] if (forecast := forecast_note(results.runs, conclusions.frontier)) else []
    if conclusions.gate is not None and conclusions.gate.text != headline(results):
        lines.append(conclusions.gate.text)
    several = len(results.settings.seeds) > 1
    lines += [
        f"{verdict.arm}: {verdict.text}{earlier_words(verdict)}"
        for verdict in conclusions.verdicts
        if verdict.length == FULL_LENGTH
        and several  # with one seed, the decision says all there is to say
    ]
    if conclusions.level is not None and several:
        lines.append(conclusions.level)
    if matched := matched_note(results):
        lines.append(f"* {matched}")
    more = (grid_note, machines_note, added_seeds, stopping_note)
    lines += [note for write in more if (note := write(results))]
    if results.settings.smoke:
        lines.append("A smoke run: it shows that everything works, and says nothing about quality.")
    return lines


def earlier_words(verdict: Verdict) -> str:
    """The words for fewer seeds, if they were different."""
    if not verdict.earlier:
        return ""
    earlier = [f"“{row.word}” with {row.seeds} seeds" for row in verdict.earlier]
    return f" The verdict has changed as seeds were added; it was {', then '.join(earlier)}."


def grid_note(results: Results) -> str:
    """How the learning rates were chosen, what that cost, and whether the grid was wide enough.

    Without a grid: what that means for the comparison.
    """
    settings = results.settings
    cost, length, seeds = settings.rate_cost, settings.rate_length, settings.rate_seeds
    if cost is None or length is None or seeds is None:
        return _without_a_grid(results)
    rates = ", ".join(f"{rate:g}" for rate in settings.learning_rates)
    by = f"{seeds} seeds" if seeds > 1 else "one seed"
    return (
        f"Learning rates {rates} were tried for every arm on a validation split, at "
        f"{length:g} × the epochs, with {by} outside the comparison: "
        f"{cost.runs} runs, {cost.share:.0%} of all sample passes. {_tie_rule(results)}"
        f"{_at_the_edge(results)}"
    )


def _without_a_grid(results: Results) -> str:
    if len(results.settings.arms) < 2:
        return ""
    return (
        f"Every arm was trained with the task's learning rate, {results.settings.learning_rate:g}, which may suit "
        "some arms better than others. With --learning-rates, each gets its best rate from the same grid."
    )


def _tie_rule(results: Results) -> str:
    if results.settings.rate_seeds == 1:
        return "One seed cannot tell close rates apart, so the choice is partly luck."
    return (
        "The rate with the best mean is chosen; among rates within one standard error of it, the task's own "
        f"({results.settings.learning_rate:g}) if it is inside the grid, or else the one nearest to its middle."
    )


def _at_the_edge(results: Results) -> str:
    """The arms whose rate is at an end of the grid, and which might be better beyond it."""
    settings = results.settings
    ends = {min(settings.learning_rates), max(settings.learning_rates)}
    best = {
        row.arm: row.learning_rate
        for row in settings.rates
        if row.behind == 0 and row.learning_rate in ends
    }
    arms = [arm for arm, rate in settings.chosen_rates.items() if best.get(arm) == rate]
    if not arms or len(ends) < 2:
        return ""
    verb = "is" if len(arms) == 1 else "are"
    return f" {', '.join(arms)} {verb} best at an end of the grid: a wider grid may do better."


def machines_note(results: Results) -> str:
    """A note that the seconds of different machines cannot be compared; empty if they need not be."""
    conclusions = results.conclusions
    if conclusions.decision is None or conclusions.compared_seconds is not None:
        return ""
    machines = dict.fromkeys(run.machine for run in results.runs)
    return (
        f"Runs of the same seed were made on different machines ({'; '.join(machines)}), so their seconds "
        "cannot be compared. Sample passes can."
    )


def added_seeds(results: Results) -> str:
    """A note that adding seeds after looking at results raises the error; empty if none."""
    stated = results.settings.stated_seeds
    if len(stated) < 2 or results.settings.most_seeds is not None:
        return ""
    return (
        f"Seeds were added after results were seen ({', then '.join(map(str, stated))}). If you "
        "stop once you like the answer, it is wrong more often than the level says: in "
        f"{ERROR_WITHOUT_DESIGN} of comparisons instead of 2.5%. State --most-seeds before the first run to "
        "look as often as you like."
    )


def stopping_note(results: Results) -> str:
    """How following the advice to add seeds would affect the error; empty if there is none."""
    settings = results.settings
    has_advice = any(verdict.more_seeds is not None for verdict in results.conclusions.verdicts)
    fixed = settings.most_seeds is None and len(settings.seeds) > 1
    if not has_advice or not fixed or added_seeds(results):
        return ""
    return (
        "Adding seeds until the answer is clear is a stopping rule, which raises the error from 2.5% "
        f"to {ERROR_WITHOUT_DESIGN}. A comparison that states --most-seeds before its first run adds "
        "seeds and keeps the level."
    )
