"""The command line: ``infobatch demo | forecast | compare | select | score | report | recipes | policies``.

Each command imports what it needs when it runs: torch and scipy take seconds, and ``--help`` needs
neither.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from infobatch.lab.datasets.folder import DATA_VARIABLE, data_folder
from infobatch.lab.recipes.registry import RECIPES
from infobatch.policies.registry import POLICIES

app = typer.Typer(
    help="Cheaper training by leaving out learned samples: try it, and see whether it works on your task.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in help texts are literal
)
LENGTHS = "0.4,0.6,0.8,1"
# Under four minutes on two cores, and a decision: chosen by drawing seeds from the ten stored ones of this
# task (benchmarks/evidence/decisions.py). It shows how a comparison works; the evidence is in the stored runs.
DEMO_LENGTHS, DEMO_SEEDS = "0.4,0.6,1", 4
RULES = "auto,mean,quantile"
_WIDTH = 80  # columns of a terminal


def _commands() -> ModuleType:
    from infobatch.lab import commands  # noqa: PLC0415 - brings torch, scipy and matplotlib

    return commands


def _print_version(asked: bool) -> None:
    if asked:
        from infobatch import __version__  # noqa: PLC0415 - only when needed

        typer.echo(f"infobatch {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Cheaper training by leaving out learned samples: try it, and see whether it works on your task."""


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Where results go. [default: demo-output, or -smoke]")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds per arm and length.")
    ] = DEMO_SEEDS,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs to make at once.")] = 2,
    smoke: Annotated[
        bool, typer.Option(help="Check in seconds, with a few samples, that it works.")
    ] = False,
) -> None:
    """Compare all data with policy="auto" on real images.

    The embedded Fashion-MNIST, at three lengths. It ends with a decision, and with the forecast beside
    what was measured.
    """
    _commands().compare(
        "fashion",
        arms="full,auto",
        lengths=DEMO_LENGTHS,
        seeds=seeds,
        most_seeds=None,
        out=out or _folder("demo-output", smoke),
        data=None,
        smoke=smoke,
        jobs=jobs,
        learning_rates=None,
        rate_seeds=None,
        rate_length=None,
        options=[],
        log=None,
    )


@app.command()
def forecast(  # noqa: PLR0917 - a command line
    source: Annotated[
        str,
        typer.Argument(
            metavar="TASK|SCORES",
            help="The name of a recipe, your own Python file, or a file of exported scores.",
        ),
    ],
    rules: Annotated[
        str, typer.Option(help="The rules to follow, with options: auto,mean:ratio=0.6.")
    ] = RULES,
    out: Annotated[
        Path | None, typer.Option(help="Where the run goes. [default: forecast-TASK, or -smoke]")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The learning rate. [default: the task's]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data: Annotated[
        Path | None,
        typer.Option(help=f"The folder with a recipe's data sets. [env: {DATA_VARIABLE}]"),
    ] = None,
    smoke: Annotated[
        bool, typer.Option(help="Check in seconds, with a few samples, that it works.")
    ] = False,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the recipe: name=value.")
    ] = None,
) -> None:
    """What would pruning save?

    Trains once on all data, follows the rules without pruning anything, and prints what each would
    save at equal quality. From a file of scores: what one epoch would save. Stop it at any time and run
    the same command to resume.
    """
    from infobatch.lab import forecast_command  # noqa: PLC0415 - brings torch and scipy

    forecast_command.forecast(
        source,
        rules=rules,
        out=out or _folder(f"forecast-{Path(source).stem}", smoke),
        data=data,
        smoke=smoke,
        seed=seed,
        learning_rate=learning_rate,
        options=option or [],
    )


@app.command()
def compare(  # noqa: PLR0917 - a command line
    task: Annotated[str, typer.Argument(help="The name of a recipe, or your own Python file.")],
    arms: Annotated[
        str | None,
        typer.Option(
            help="The arms to compare, with options: full,mean:ratio=0.6,my_rules.py:MyRule. "
            "[default: full, random, infobatch, quantile, auto; and short with --lengths 1]"
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Shares of the epochs that every arm is trained for.")
    ] = LENGTHS,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs per arm and length, each with its own seed.")
    ] = 5,
    most_seeds: Annotated[
        int | None,
        typer.Option(help="Add seeds up to this many until there is a decision; keeps the level."),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            help="A grid such as 0.03,0.1,0.3; each arm gets its best rate on validation splits."
        ),
    ] = None,
    rate_seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Seeds that choose from the grid. [default: 3, or --seeds if fewer]"
        ),
    ] = None,
    rate_length: Annotated[
        float | None,
        typer.Option(help="Share of the epochs that they train for. [default: the shortest]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where results go. [default: compare-TASK, or -smoke]")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help=f"The folder with a recipe's data sets. [env: {DATA_VARIABLE}]"),
    ] = None,
    smoke: Annotated[
        bool, typer.Option(help="Check in seconds, with a few samples, that it works.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs to make at once.")] = 1,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the recipe: name=value.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="Write curves for tensorboard or wandb.")] = None,
) -> None:
    """Should you prune on this task, and how?

    Trains every arm, then decides, with an interval. Stop it at any time and run the same command to
    resume. You can add more seeds, arms and lengths to the same folder later.
    """
    _commands().compare(
        task,
        arms=arms,
        lengths=lengths,
        seeds=seeds,
        most_seeds=most_seeds,
        out=out or _folder(f"compare-{Path(task).stem}", smoke),
        data=data,
        smoke=smoke,
        jobs=jobs,
        learning_rates=learning_rates,
        rate_seeds=rate_seeds,
        rate_length=rate_length,
        options=option or [],
        log=log,
    )


@app.command()
def select(  # noqa: PLR0917 - a command line
    method: Annotated[
        str, typer.Argument(help="How to choose: k_center, el2n, forgetting, random, …")
    ],
    task: Annotated[
        str | None, typer.Argument(help="The name of a recipe, or your own Python file.")
    ] = None,
    fraction: Annotated[float, typer.Option(help="The share of the samples to choose.")] = 0.3,
    scores: Annotated[
        Path | None, typer.Option(help="Choose by the scores in a file that export_scores() wrote.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="The column to choose by. [default: the one named after the method]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A .npz, .csv or .parquet file. [default: METHOD-FRACTION.npz]"),
    ] = None,
    balanced: Annotated[
        bool | None,
        typer.Option(help="The same share of each class. [default: if there are classes]"),
    ] = None,
    networks: Annotated[
        int, typer.Option(min=1, help="How many networks EL2N and GraNd average over.")
    ] = 1,
    proxy_epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Epochs of the proxy. [default: a fifth of the task's]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the method: name=value.")
    ] = None,
    recipe: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the recipe: name=value.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help=f"The folder with a recipe's data sets. [env: {DATA_VARIABLE}]"),
    ] = None,
    smoke: Annotated[
        bool, typer.Option(help="Check in seconds, with a few samples, that it works.")
    ] = False,
) -> None:
    """Choose a subset to train on.

    With a proxy, or from an exported file of scores. Writes the indices and weights, and a page with the
    most and least important samples. Stop it at any time and run the same command to resume.
    """
    from infobatch.lab import select_command  # noqa: PLC0415 - brings torch, scipy and matplotlib

    request = select_command.Request(
        method=method,
        task=task,
        fraction=fraction,
        scores=scores,
        column=column,
        balanced=balanced,
        seed=seed,
        networks=networks,
        proxy_epochs=proxy_epochs,
        option=option or [],
        recipe=recipe or [],
        data=data,
        smoke=smoke,
    )
    select_command.select(request, out)


def _folder(name: str, smoke: bool) -> Path:
    """The default folder of a comparison; smoke runs get a separate one."""
    return Path(f"{name}-smoke" if smoke else name)


@app.command()
def score(  # noqa: PLR0917 - a command line
    task: Annotated[str, typer.Argument(help="The name of a recipe, or your own Python file.")],
    out: Annotated[Path, typer.Option(help="The file of scores: .npz, .csv or .parquet.")] = Path(
        "scores.npz"
    ),
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights to score with. [default: those that model() returns]"),
    ] = None,
    proxy: Annotated[
        bool, typer.Option(help="Score with the task's proxy(), not model().")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model's initial weights.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(help=f"The folder with a recipe's data sets. [env: {DATA_VARIABLE}]"),
    ] = None,
    smoke: Annotated[
        bool, typer.Option(help="Check in seconds, with a few samples, that it works.")
    ] = False,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the recipe: name=value.")
    ] = None,
) -> None:
    """Score the training samples in a pass without gradients.

    So that the first epoch can be pruned: use the file as initial_scores=, or in a comparison:
    --arms full,mean:scores=scores.npz. The cost of that arm then includes the cost of scoring.
    """
    _commands().score(
        task,
        out=out,
        checkpoint=checkpoint,
        proxy=proxy,
        seed=seed,
        data=data,
        smoke=smoke,
        options=option or [],
    )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a comparison.")],
) -> None:
    """Write the report of a comparison again, finished or not."""
    _commands().report(folder)


@app.command()
def recipes(
    data: Annotated[
        Path | None, typer.Option(help=f"The folder with the data sets. [env: {DATA_VARIABLE}]")
    ] = None,
) -> None:
    """List the recipes, and what each of them still needs."""
    folder = data_folder(data)
    rows = []
    for name, recipe in RECIPES.entries.items():
        missing = [
            f"data: {file}"
            for file in recipe.files
            if folder is None or not any((folder / name).exists() for name in file.split(" or "))
        ]
        missing += [
            f"package: {package}" for package in recipe.packages if find_spec(package) is None
        ]
        rows.append(
            (name, recipe.summary, "ready" if not missing else "missing " + ", ".join(missing))
        )
    _print_rows(rows)
    typer.echo(f"Run one: infobatch compare NAME --data DIR (or ${DATA_VARIABLE}).")


@app.command()
def policies() -> None:
    """List the pruning policies."""
    rules = sorted(POLICIES.entries.items())
    _print_rows([(name, rule.summary.replace("``", "")) for name, rule in rules])  # no markup


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a name, then each of its texts below it, in lines of at most 80 columns."""
    for name, *texts in rows:
        typer.echo(name)
        for text in texts:
            typer.echo(textwrap.indent(textwrap.fill(text, _WIDTH - 4), "    "))


if __name__ == "__main__":
    app()
