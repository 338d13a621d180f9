"""Forecasts from a run on all data that followed other arms, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable

from infobatch.forecast import ERROR, FEW_EPOCHS, Forecast, RuleForecast, percent
from infobatch.lab.stats.frontier import Frontier
from infobatch.lab.stats.runs import FULL_LENGTH, Record, label_of


def forecast_of(records: Iterable[Record]) -> Forecast | None:
    """The forecast of the first run that followed other arms; None if no run did."""
    for record in records:
        if record.shadows:
            return Forecast(
                {
                    label_of(arm): RuleForecast(epochs, to_come=0, num_epochs=len(epochs))
                    for arm, epochs in record.shadows.items()
                }
            )
    return None


def forecast_note(records: Iterable[Record], frontier: Frontier | None) -> str:
    """What was forecast for each arm beside what was measured; empty if nothing was forecast."""
    forecast = forecast_of(records)
    if forecast is None:
        return ""
    measured = {} if frontier is None else _measured(frontier)
    parts = [
        f"{arm} {percent(rule.saving)}"
        + (f" (measured: {measured[arm]})" if arm in measured else "")
        for arm, rule in forecast.rules.items()
        if not rule.biased
    ]
    if not parts:
        return ""
    count = max(rule.num_epochs for rule in forecast.rules.values())
    if count <= FEW_EPOCHS:
        return (
            f"No forecast of the saving at equal quality for {count} epochs: with so few, the number of steps "
            "matters more than noise."
        )
    return (
        "Forecast of the saving at equal quality, from one run on all data, "
        f"± {100 * ERROR:.0f} points: {', '.join(parts)}."
    )


def _measured(frontier: Frontier) -> dict[str, str]:
    """Each arm's saving from its lengths together, or at full length where there is none."""
    savings = {
        point.arm: point.saving for point in frontier.points if point.length == FULL_LENGTH
    } | {row.arm: row.saving for row in frontier.pooled if row.saving is not None}
    return {label_of(arm): saving.text for arm, saving in savings.items() if saving is not None}
