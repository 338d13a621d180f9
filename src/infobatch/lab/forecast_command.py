"""The command ``infobatch forecast``: what would pruning save, from one ordinary run or from scores?"""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path

import numpy as np
import typer

from infobatch.distributed.ranks import Ranks
from infobatch.forecast import Forecast, RuleForecast
from infobatch.forecast.realised import realised_noise, sums_of
from infobatch.lab.commands import ENDINGS, check_data, check_writable, plain_errors
from infobatch.lab.options import parse_options
from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.process import run_once
from infobatch.lab.run.result import read_result
from infobatch.lab.stats.forecasts import forecast_of
from infobatch.lab.stats.runs import FULL, label_of
from infobatch.memory.export import read_table
from infobatch.memory.memory import SCORE
from infobatch.plan import FloatArray
from infobatch.policies.gradient import sizing_of
from infobatch.policies.planning import Planner
from infobatch.savings import EpochPasses

_WIDTH = 80  # columns of a terminal
_EPOCHS = 100  # of the run from whose middle scores are taken to be


def forecast(
    source: str,
    *,
    rules: str,
    out: Path,
    data: Path | None,
    smoke: bool,
    seed: int,
    learning_rate: float | None,
    options: list[str],
) -> None:
    """Print a forecast from a task, which is trained once, or from a file of scores."""
    with plain_errors():
        arms = parse_arms(rules)
        for arm in arms:
            if not arm.can_be_followed:
                raise ValueError(
                    f"--rules got {arm.name!r}, which cannot be followed on all data. Expected pruning "
                    "rules, such as auto,mean,quantile:delta=1.0."
                )
        if Path(source).suffix in ENDINGS:
            typer.echo(snapshot(Path(source), arms))
            return
        check_data(data)
        check_writable(out, folder=out)
        run_once(
            source,
            out,
            arm=FULL,
            seed=seed,
            data=data,
            smoke=smoke,
            options=parse_options(options),
            budget=None,
            learning_rate=learning_rate,
            validation=False,
            shadow=rules,
            events=False,
        )
        record = read_result(out)
        known = forecast_of([] if record is None else [record])
        followed = {} if known is None else known.rules
        wanted = [label_of(arm.name) for arm in arms]
        if missing := [name for name in wanted if name not in followed]:
            raise ValueError(
                f"--rules got {', '.join(missing)}, but {out} holds a finished run that followed "
                f"{', '.join(followed) or 'no rules'}. Choose another --out, or delete it."
            )
        typer.echo(str(Forecast({name: followed[name] for name in wanted})))
        if smoke:
            typer.echo(
                "A smoke run: it shows that everything works, and says nothing about savings."
            )


def snapshot(path: Path, arms: list[Arm]) -> str:
    """What one epoch would save if it began with the scores in a file."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}. Expected scores that export_scores() wrote.")
    table = read_table("infobatch forecast", path)
    if SCORE not in table:
        raise ValueError(
            f"{path} has the columns {sorted(table)}, expected {SCORE!r}, as export_scores() writes it."
        )
    columns = {name: np.asarray(column) for name, column in table.items() if name != "index"}
    columns[SCORE] = columns[SCORE].astype(np.float32)
    columns[SCORE][~np.isfinite(columns[SCORE])] = np.nan
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        rules = {label_of(arm.name): _one_epoch(arm, columns) for arm in arms}
    note = (
        "A snapshot: what one epoch would save at equal quality if it began with these scores, as far "
        "as they predict the next visit. How well they do, and what the other epochs save, "
        "only a training shows: infobatch forecast TASK."
    )
    notes = [note, *dict.fromkeys(str(doubt.message) for doubt in doubts)]
    return "\n".join([Forecast(rules).table, *(textwrap.fill(text, _WIDTH) for text in notes)])


def _one_epoch(arm: Arm, columns: dict[str, FloatArray]) -> RuleForecast:
    scores = columns[SCORE]
    planner = Planner.of(len(scores), _EPOCHS, arm.options).followed()
    memory = planner.new_memory(Ranks())
    memory.restore(columns)
    middle = _EPOCHS // 2
    earlier = _on_budget(planner, middle)
    plan = planner.draw(memory, Ranks(), earlier, epoch=middle, seed=0)
    sizes = sums_of(plan, scores, sizing_of(planner.policy))
    noise = None if plan.biased else realised_noise(sizes)
    kept = len(plan)
    epoch = EpochPasses(0, len(scores), kept, kept, 0, (), plan.added_noise, realised_noise=noise)
    return RuleForecast((epoch,) * _EPOCHS, to_come=0, num_epochs=_EPOCHS)


def _on_budget(planner: Planner, count: int) -> list[EpochPasses]:
    """The first ``count`` epochs of a run that saves as much in each as a budget, if any, asks for."""
    size, save = planner.num_samples, planner.options.save
    share = 0.0 if save is None else save * planner.num_epochs / planner.prunable(0)
    shares = (share if epoch and planner.prunes(epoch) else 0.0 for epoch in range(count))
    kept = [round(size * (1 - share)) for share in shares]
    return [EpochPasses(epoch, size, made, made, 0, ()) for epoch, made in enumerate(kept)]
