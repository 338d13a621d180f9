"""What a rule would save: shadows beside a training on all data, the noise of pruning, and the law."""

from infobatch.forecast.law import (
    ERROR,
    FEW_EPOCHS,
    Forecast,
    RuleForecast,
    epoch_saving,
    percent,
)

__all__ = ["ERROR", "FEW_EPOCHS", "Forecast", "RuleForecast", "epoch_saving", "percent"]
