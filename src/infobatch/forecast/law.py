"""What a rule saves at equal quality, forecast from what it leaves out and the noise that it adds.

Pruning makes an epoch cheaper and noisier. Where noise limits progress, an epoch with a noise larger
by a factor 1 + a is worth 1/(1 + a) of one, so that a rule needs as much compute as a training on all
data that is shorter by

    saving = 1 − mean over the epochs of kept × (1 + realised noise).

It says 0 for random pruning: training for fewer epochs does as well. How near this comes to what was
measured is on the page docs/results/forecast.md.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from infobatch.policies.registry import POLICIES
from infobatch.savings import FORWARD, EpochPasses

ERROR = 0.1  # of a rule that the sentence names, against measured savings: docs/results/forecast.md
TOLERANCE = 0.05  # the most that a forecast may still move, if the trend goes on
FEW_EPOCHS = 5  # with so few, the number of steps matters more than noise, see the same page
_FEWEST = 4  # pruned epochs that show a trend
_DOUBT = (
    " But the losses do not show the sizes of the gradients to {}, as a warning said: follow what it says, "
    "and it may save more."
)
_PREFIX = "infobatch/forecast"
_WIDTH = 80  # columns of a terminal
_LONGEST_NAME = 28  # of a rule whose numbers are on the same line


def epoch_saving(epoch: EpochPasses, *, promised: bool = False) -> float:
    """The share of an epoch over all data that a pruned one saves at equal quality.

    Args:
        epoch: the record of the pruned epoch.
        promised: go by the noise that the plan promised, even if the realised noise is known.

    >>> epoch_saving(EpochPasses(1, 100, 60, 60, 0, added_noise=0.2))
    0.28
    """
    noise = None if promised else epoch.realised_noise
    noise = epoch.added_noise if noise is None else noise
    return 1 - epoch.kept_cost * (1 + noise) - FORWARD * epoch.refreshed_cost


@dataclass(frozen=True)
class RuleForecast:
    """The forecast for one rule.

    Attributes:
        epochs: the records of its epochs so far.
        to_come: how many more epochs it would prune.
        num_epochs: how many epochs training takes in total.
        doubtful: whether a warning said that the losses do not show the sizes of the gradients.
        is_followed: False if a warning said that the rule cannot use these losses.
    """

    epochs: tuple[EpochPasses, ...]
    to_come: int
    num_epochs: int
    doubtful: bool = False
    is_followed: bool = True

    @property
    def pruned(self) -> tuple[EpochPasses, ...]:
        """The epochs so far that left something out."""
        return tuple(epoch for epoch in self.epochs if epoch.planned < epoch.full)

    @property
    def left_out(self) -> float:
        """The mean share of the cost that the epochs so far left out."""
        return fmean(1 - epoch.kept_cost for epoch in self.epochs) if self.epochs else 0.0

    @property
    def promised_noise(self) -> float:
        """The mean of the noise that pruned epochs were expected to add."""
        return fmean(epoch.added_noise for epoch in self.pruned) if self.pruned else 0.0

    @property
    def realised_noise(self) -> float | None:
        """The mean of the noise that pruned epochs added, by the losses of their own visits."""
        known = [epoch.realised_noise for epoch in self.pruned]
        measured = [noise for noise in known if noise is not None]
        return fmean(measured) if measured else None

    @property
    def biased(self) -> bool:
        """Whether the rule adds a bias instead of noise, about which the law says nothing."""
        return bool(self.pruned) and self.realised_noise is None

    @property
    def saving(self) -> float:
        """The saving at equal quality of the whole run; epochs to come are like the last ones."""
        return self.saving_if(promised=False)

    def saving_if(self, *, promised: bool) -> float:
        """Return the saving of the whole run by one kind of noise.

        Args:
            promised: go by the noise that the plans promised, even if the realised noise is known.

        Returns:
            The share of the cost of a run over all data.
        """
        savings = [epoch_saving(epoch, promised=promised) for epoch in self.epochs]
        pruned = [epoch_saving(epoch, promised=promised) for epoch in self.pruned]
        level = fmean(pruned[-_quarter(pruned) :]) if pruned else 0.0
        total = max(self.num_epochs, len(savings), 1)
        return (math.fsum(savings) + self.to_come * level) / total

    @property
    def trend(self) -> float:
        """How much the saving would change if the epochs to come went on changing as the last ones did."""
        savings = [epoch_saving(epoch) for epoch in self.pruned]
        size = _quarter(savings)
        if len(savings) < 2 * size:
            return 0.0
        change = fmean(savings[-size:]) - fmean(savings[-2 * size : -size])
        return change / size * self.to_come**2 / 2 / max(self.num_epochs, 1)

    @property
    def is_known(self) -> bool:
        """Whether a saving is forecast: not for biased rules, few epochs, or before any pruned epoch."""
        begun = bool(self.pruned) or not self.to_come
        return begun and not self.biased and self.num_epochs > FEW_EPOCHS

    @property
    def reason_to_wait(self) -> str:
        """Why this cannot be said yet; empty if it can."""
        if not self.to_come:
            return ""
        if not self.pruned:
            return "no epoch so far would have left anything out"
        if (count := len(self.pruned)) < _FEWEST:
            epochs = "epoch is" if count == 1 else "epochs are"
            return f"{count} pruned {epochs} too few to see a trend"
        if abs(self.trend) > TOLERANCE:
            before = self.pruned[-1 - _quarter(self.pruned)]
            now, direction = epoch_saving(self.pruned[-1]), "rises" if self.trend > 0 else "falls"
            return (
                f"the spread of the gradients' sizes still {direction}: an epoch would save "
                f"{percent(now)} now, {percent(epoch_saving(before))} a little earlier"
            )
        return ""


def _quarter(epochs: Sequence[object]) -> int:
    return max(1, len(epochs) // 4)


def percent(share: float) -> str:
    """A share in whole percent, with a true minus sign.

    >>> percent(0.284), percent(-0.284), percent(-0.001)
    ('28%', '−28%', '0%')
    """
    return f"{round(100 * share):d}%".replace("-", "−")


@dataclass(frozen=True)
class Forecast:
    """What rules would save at equal quality, from the epochs so far.

    Attributes:
        rules: the forecasts of the rules, by name.
        shadows: whether nothing was pruned, because the rules were followed beside a training on all
            data.
        seconds: the processor time in this process that following them took.

    >>> epoch = EpochPasses(1, 100, 60, 60, 0, added_noise=0.2, realised_noise=0.2)
    >>> print(Forecast({"auto": RuleForecast((epoch,) * 8, to_come=0, num_epochs=8)}))
    rule  left out  promised noise  realised noise  saving
    auto     40.0%            0.20            0.20     28%
    Use policy="auto": it would save about 28% of the sample passes at equal quality
    (± 10 points, more likely less than more).
    """

    rules: Mapping[str, RuleForecast]
    shadows: bool = True
    seconds: float = field(default=0.0, compare=False)

    @property
    def best(self) -> str | None:
        """The rule that saves most, None if none can be judged."""
        judged = [name for name, rule in self.rules.items() if rule.epochs and not rule.biased]
        return max(judged, key=lambda name: self.rules[name].saving, default=None)

    @property
    def sentence(self) -> str:
        """What to use, what that would save at equal quality and how sure it is; or why not."""
        name = self.best
        if name is None:
            return self._nothing_to_judge
        rule = self.rules[name]
        if rule.num_epochs <= FEW_EPOCHS:
            return (
                f"No forecast for {rule.num_epochs} epochs: with so few, the number of steps matters more "
                "than noise, and forecasts were far too low. Compare instead: docs/few-epochs.md."
            )
        if rule.reason_to_wait:
            return f"Too early to tell: {rule.reason_to_wait}. Ask again later."
        sure = f"± {100 * ERROR:.0f} points, more likely less than more"
        doubt = _DOUBT.format(name) if rule.doubtful else ""
        saved = f"{percent(rule.saving)} of the sample passes at equal quality ({sure})"
        if rule.saving <= ERROR:
            rules = (
                f"the best rule, {name}, would save"
                if self.shadows
                else f"this run, by {name}, saves"
            )
            return f"Do not prune here: {rules} {saved}. To save compute, train for fewer epochs.{doubt}"
        if not self.shadows:
            return f"This run, pruned by {name}, saves about {saved}.{doubt}"
        use = f'policy="{name}"' if name in POLICIES else name
        return f"Use {use}: it would save about {saved}.{doubt}"

    @property
    def _nothing_to_judge(self) -> str:
        """Why there is no best rule."""
        if not any(rule.is_followed for rule in self.rules.values()):
            return (
                "No forecast: the rules cannot use these losses; the warning during training says why and "
                "what to change."
            )
        if not any(rule.biased for rule in self.rules.values()):
            return (
                "Too early to tell: no epoch that could be followed has ended yet. Ask again later."
            )
        return (
            "No forecast for biased rules: a bias is not noise, and what it costs only a comparison "
            "shows. Follow an unbiased rule, such as auto."
        )

    def as_dict(self) -> dict[str, float]:
        """Return flat numbers for a logger.

        Returns:
            The numbers by name: of the last epoch, and the saving of the whole run.
        """
        numbers: dict[str, float] = {}
        for name, rule in self.rules.items():
            if not rule.epochs:
                continue
            last = rule.epochs[-1]
            numbers[f"{_PREFIX}/{name}/left_out"] = 1 - last.kept_cost
            numbers[f"{_PREFIX}/{name}/promised_noise"] = last.added_noise
            if last.realised_noise is not None and not rule.biased:
                numbers[f"{_PREFIX}/{name}/realised_noise"] = last.realised_noise
            if rule.is_known:
                numbers[f"{_PREFIX}/{name}/saving"] = rule.saving
        return numbers

    @property
    def table(self) -> str:
        """One line per rule, at most 80 columns wide."""
        short = [name for name in self.rules if len(name) <= _LONGEST_NAME]
        width = max(map(len, ("rule", *short)))
        lines = [f"{'rule':{width}}  left out  promised noise  realised noise  saving"]
        for name, rule in self.rules.items():
            if name not in short:
                lines.append(name)
            label = f"{name if name in short else '':{width}}"
            if not rule.is_followed:
                lines.append(f"{label}  not followed: it cannot use these losses")
                continue
            noise = rule.realised_noise
            realised = "" if noise is None else f"{noise:.2f}"
            saving = "biased" if rule.biased else percent(rule.saving) if rule.is_known else "–"
            lines.append(
                f"{label}  {rule.left_out:8.1%}  "
                f"{rule.promised_noise:14.2f}  {realised:>14}  {saving:>6}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.table}\n{textwrap.fill(self.sentence, _WIDTH)}"
