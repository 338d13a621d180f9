"""The forecasts of ``benchmarks/shadow_runs.py`` beside the savings that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stored import stored_results

from infobatch.forecast import ERROR, FEW_EPOCHS, Forecast, RuleForecast, percent
from infobatch.lab.compare.results import Results
from infobatch.lab.stats.frontier import Pooled
from infobatch.lab.stats.runs import label_of
from infobatch.savings import EpochPasses

STORED = Path(__file__).parents[1] / "results"
# What the table calls the tasks; studies of one length have one point, so theirs are rough.
TASKS = {
    "demo": "Fashion-MNIST, SGD",
    "fresh-fashion": "Fashion-MNIST, other images, SGD",
    "wrong-labels-fashion": "Fashion-MNIST, wrong labels, SGD",
    "frontier-covertype": "Covertype, AdamW",
    "wide-cifar10": "CIFAR-10, SGD",
    "frontier-cifar10": "CIFAR-10, SGD, a narrow grid",
    "frontier-camvid": "CamVid, AdamW, 12 epochs",
    "frontier-mae": "masked autoencoder, AdamW, 10 epochs",
    "frontier-diffusion": "diffusion, AdamW, 10 epochs",
    "few-epochs-alpaca": "Alpaca, AdamW, 3 epochs",
    "few-epochs-gsm8k": "GSM8K, AdamW, 3 epochs",
    "table4-fashion": "Fashion-MNIST, SGD, Table 4, one length",
    "table7-sgd": "Fashion-MNIST, SGD, one length",
    "table7-adamw": "Fashion-MNIST, AdamW, one length",
    "table7-lars": "Fashion-MNIST, LARS, one length",
    "table7-lamb": "Fashion-MNIST, LAMB, one length",
    "table6-small_resnet": "CIFAR-10, small ResNet, one length",
    "table6-resnet": "CIFAR-10, ResNet, one length",
    "table6-vit": "CIFAR-10, ViT, one length",
    "table9-alpaca": "Alpaca, 5 epochs, one length",
}


@dataclass(frozen=True)
class Row:
    """A rule on a task: what was forecast, and what was measured."""

    study: str
    arm: str
    rule: RuleForecast
    measured: float | None  # None if only a bound is known
    lengths: int

    @property
    def error(self) -> float | None:
        """How much more was forecast than measured."""
        return None if self.measured is None else self.rule.saving - self.measured


def stored_runs() -> dict[str, dict[str, Any]]:
    """The content of every file of shadow runs, in the order of the table."""
    folder = STORED / "forecast"
    return {
        study: json.loads((folder / f"{study}.json").read_text())
        for study in TASKS
        if (folder / f"{study}.json").exists()
    }


def rows() -> list[Row]:
    """Every unbiased rule that was followed and measured; about the others the law says nothing."""
    forecasts = []
    for study, run in stored_runs().items():
        results = stored_results(study)
        for arm, epochs in run["shadow"].items():
            rule = rule_of(epochs, run)
            if not rule.biased:
                pooled = pooled_saving(results, arm)
                saving = pooled.saving
                measured = None if saving is None or saving.bound else saving.estimate
                forecasts.append(Row(study, label_of(arm), rule, measured, len(pooled.lengths)))
    return forecasts


def rule_of(epochs: Sequence[Sequence[float | None]], run: Mapping[str, Any]) -> RuleForecast:
    """The forecast from stored epochs: kept share, promised and realised noise."""
    size = run["num_samples"]
    passes = tuple(
        EpochPasses(
            number, size, round(kept * size), round(kept * size), 0,
            added_noise=promised, realised_noise=realised,
        )
        for number, (kept, promised, realised) in enumerate(epochs)
    )  # fmt: skip
    return RuleForecast(passes, to_come=0, num_epochs=len(passes))


def pooled_saving(results: Results, arm: str) -> Pooled:
    """What an arm saves at equal quality, from its lengths together: the number on the pages of results."""
    frontier = results.conclusions.frontier
    assert frontier is not None
    return next(row for row in frontier.pooled if row.arm == arm)


@dataclass(frozen=True)
class Agreement:
    """How forecasts and measured savings agree over some rows."""

    count: int
    mean_error: float
    error: float  # root mean square
    correlation: float
    within_ten: int

    @classmethod
    def of(cls, some: Sequence[Row], *, promised: bool = False) -> Agreement:
        """The agreement of those rows that were measured; by the ``promised`` noise if asked."""
        pairs = np.array(
            [
                (row.rule.saving_if(promised=promised), row.measured)
                for row in some
                if row.measured is not None
            ]
        )
        errors = pairs[:, 0] - pairs[:, 1]
        return cls(
            len(pairs),
            float(errors.mean()),
            float(np.sqrt(np.square(errors).mean())),
            float(np.corrcoef(pairs.T)[0, 1]),
            int((np.abs(errors) <= 0.1).sum()),
        )


def forecast_block() -> str:
    """The table, how well forecasts and savings agree, and shadows beside really pruned runs."""
    every = rows()
    lines = [
        "| task | rule | left out | promised noise | realised noise | forecast | measured | difference |",
        "|---|---|---|---|---|---|---|---|",
        *(table_line(row) for row in every),
        "",
        "| rows | number | correlation | mean error | error (root mean square) | within 10 points |",
        "|---|---|---|---|---|---|",
        *agreement_lines(every),
        "",
        "| task | what the sentence would have said | forecast | measured |",
        "|---|---|---|---|",
        *advice_lines(every),
        "",
        "| task | rule | kept, really pruned | kept, followed | kept, every score fresh "
        "| realised noise, really pruned | followed | every score fresh |",
        "|---|---|---|---|---|---|---|---|",
        *real_lines(),
        "",
        *early_lines(),
    ]
    return "\n".join(lines) + "\n"


def table_line(row: Row) -> str:
    noise = row.rule.realised_noise
    measured = "only a bound" if row.measured is None else percent(row.measured)
    difference = "" if row.error is None else f"{round(100 * row.error):+d}".replace("-", "−")
    return (
        f"| {TASKS[row.study]} | `{row.arm}` | {row.rule.left_out:.0%} | {row.rule.promised_noise:.2f} | "
        f"{'' if noise is None else f'{noise:.2f}'} | {percent(row.rule.saving)} | {measured} | {difference} |"
    )


def agreement_lines(every: Sequence[Row]) -> Iterator[str]:
    """All rows, those that a forecast is made for, and parts of them."""
    groups = {
        "all": every,
        f"more than {FEW_EPOCHS} epochs: those that are forecast": promised_for(every),
        "of these, other data than Fashion-MNIST": [
            row for row in promised_for(every) if "Fashion" not in TASKS[row.study]
        ],
        "`auto`": [row for row in every if row.arm.startswith("auto")],
        "the paper's rules": [row for row in every if not row.arm.startswith("auto")],
        "measured at several lengths": [row for row in every if row.lengths > 1],
    }
    for name, group in groups.items():
        yield agreement_line(name, Agreement.of(group))
    yield agreement_line("all, by the promised noise", Agreement.of(every, promised=True))


def promised_for(every: Sequence[Row]) -> list[Row]:
    """The rows for which ``forecast()`` would have promised something."""
    return [row for row in every if row.rule.num_epochs > FEW_EPOCHS]


def agreement_line(name: str, agreement: Agreement) -> str:
    bias = f"{round(100 * agreement.mean_error):+d}".replace("-", "−")
    return (
        f"| {name} | {agreement.count} | {agreement.correlation:.2f} | {bias} points | {100 * agreement.error:.0f} points | "
        f"{agreement.within_ten} |"
    )


def advised(every: Sequence[Row]) -> list[Row]:
    """Of each training that is forecast, the rule that the sentence would have named."""
    named = []
    for study in dict.fromkeys(row.study for row in promised_for(every)):
        rules = {row.arm: row for row in every if row.study == study}
        best = Forecast({arm: row.rule for arm, row in rules.items()}).best
        assert best is not None
        named.append(rules[best])
    return named


def advice_lines(every: Sequence[Row]) -> Iterator[str]:
    """What the sentence would have said, beside what was then measured."""
    for row in advised(every):
        advice = f"use `{row.arm}`" if row.rule.saving > ERROR else f"do not prune (`{row.arm}`)"
        measured = "only a bound" if row.measured is None else percent(row.measured)
        yield f"| {TASKS[row.study]} | {advice} | {percent(row.rule.saving)} | {measured} |"


def real_lines() -> Iterator[str]:
    """Shadows beside runs that were really pruned, where these were made."""
    for study, run in stored_runs().items():
        for arm, epochs in run["pruned"].items():
            by_kind = [
                rule_of(rows, run) for rows in (epochs, run["shadow"][arm], run["fresh"][arm])
            ]
            kept = " | ".join(f"{1 - rule.left_out:.1%}" for rule in by_kind)
            noise = " | ".join(f"{rule.realised_noise:.2f}" for rule in by_kind)
            yield f"| {TASKS[study]} | `{label_of(arm)}` | {kept} | {noise} |"


def early_lines() -> list[str]:
    """What would have been forecast earlier in the training, against what was forecast at its end."""
    lines = [
        "| asked after | could be told | error of these against the forecast at the end |",
        "|---|---|---|",
    ]
    for share in (0.25, 0.5, 0.75):
        decided, errors = 0, []
        for row in (known := rows()):
            early = cut(row.rule, share)
            if not early.reason_to_wait:
                decided += 1
                errors.append(early.saving - row.rule.saving)
        error = f"{100 * np.sqrt(np.square(errors).mean()):.0f} points" if errors else ""
        lines.append(f"| {share:.0%} of the epochs | {decided} of {len(known)} | {error} |")
    return lines


def cut(rule: RuleForecast, share: float) -> RuleForecast:
    """The forecast after a share of the epochs."""
    count = round(share * len(rule.epochs))
    to_come = sum(epoch.planned < epoch.full for epoch in rule.epochs[count:])
    return RuleForecast(rule.epochs[:count], to_come, rule.num_epochs)
