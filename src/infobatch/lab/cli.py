"""The command line: ``infobatch demo | compare | report | recipes | policies``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from infobatch.lab.arms import parse_arms
from infobatch.lab.comparison import Comparison
from infobatch.lab.jobs import JobFailed
from infobatch.lab.live import LiveTable, answers, results_table
from infobatch.lab.recipes import DATA_VARIABLE, NEEDS, RECIPES, data_folder
from infobatch.lab.report import write_report
from infobatch.lab.results import read_results
from infobatch.lab.run import parse_options, print_error
from infobatch.lab.task import TaskError
from infobatch.policies import POLICIES

app = typer.Typer(
    help="Train on less data, get the same model: try it, and see whether it holds on your task.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors in words, without a traceback; Ctrl-C says how to go on."""
    try:
        yield
    except (TaskError, ValueError, JobFailed) as error:
        print_error(error)
        raise typer.Exit(1 if isinstance(error, JobFailed) else 2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. The same command goes on from here.")
        raise typer.Exit(130) from None


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Where results go. [default: demo-output, or -smoke]")
    ] = None,
    seed_count: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per arm.")] = 1,
    smoke: Annotated[bool, typer.Option(help="Seconds instead of minutes.")] = False,
) -> None:
    """Compare on the embedded Fashion-MNIST: all data, fewer epochs, random pruning, InfoBatch."""
    with plain_errors():
        comparison = Comparison(
            "fashion",
            parse_arms(ARMS),
            seed_count,
            out or _folder("demo-output", smoke),
            smoke=smoke,
            command=_command_line(),
        )
        _compare(comparison, jobs=1)


ARMS = "full,short,random,infobatch,quantile"


@app.command()
def compare(  # noqa: PLR0917 - a command line
    task: Annotated[str, typer.Argument(help="A recipe's name, or a Python file of your own.")],
    arms: Annotated[str, typer.Option(help="Which arms, by name.")] = ARMS,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per arm, each with its own seed.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Where results go. [default: compare-TASK, or -smoke]")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help=f"The folder with a recipe's data sets. [env: {DATA_VARIABLE}]"),
    ] = None,
    smoke: Annotated[bool, typer.Option(help="A few samples, seconds: does it work?")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    learning_rates: Annotated[
        str | None,
        typer.Option(help="A grid such as 0.03,0.1,0.3: each arm's best, by a validation split."),
    ] = None,
    option: Annotated[list[str], typer.Option("--set", help="A recipe's option: name=value.")] = [],  # noqa: B006
    log: Annotated[str | None, typer.Option(help="Curves for tensorboard or wandb.")] = None,
) -> None:
    """Is pruning lossless on this task? Train the arms over seeds, and say it with an interval.

    Stop it at any time: the same command goes on. More seeds may be added to the same folder.
    """
    with plain_errors():
        comparison = Comparison(
            task,
            parse_arms(arms),
            seeds,
            out or _folder(f"compare-{Path(task).stem}", smoke),
            data=data,
            smoke=smoke,
            options=parse_options(option),
            learning_rates=_numbers(learning_rates),
            log=log,
            command=_command_line(),
        )
        _compare(comparison, jobs=jobs)


def _compare(comparison: Comparison, *, jobs: int) -> None:
    with LiveTable(console, comparison) as live:
        results = comparison.run(at_once=jobs, watch=live.watch)
    _tell(results)
    page = write_report(comparison.out)
    console.print(f"Wrote {comparison.out / 'results.json'} and {page}", soft_wrap=True)


def _tell(results: dict[str, Any]) -> None:
    console.print(results_table(results))
    for line in answers(results):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _folder(name: str, smoke: bool) -> Path:
    """Where a comparison goes that names no folder: a smoke run must not be in the way of a real one."""
    return Path(f"{name}-smoke" if smoke else name)


def _command_line() -> str:
    return shlex.join(["infobatch", *sys.argv[1:]])


def _numbers(text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [0.0]
    if not all(number > 0 for number in numbers):
        raise ValueError(f"--learning-rates got {text!r}, expected positive numbers: 0.03,0.1,0.3.")
    return numbers


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a comparison.")],
) -> None:
    """Write the report of a comparison anew, also of one that is not finished."""
    with plain_errors():
        _tell(read_results(folder))
        console.print(f"Wrote {write_report(folder)}", soft_wrap=True)


@app.command()
def recipes(
    data: Annotated[
        Path | None, typer.Option(help=f"The folder with the data sets. [env: {DATA_VARIABLE}]")
    ] = None,
) -> None:
    """List the recipes and whether their data and packages are there."""
    folder = data_folder(data)
    table = Table("recipe", "what", "ready")
    for name, what in RECIPES.items():
        files, packages = NEEDS[name]
        missing = [
            f"data: {file}"
            for file in files
            if folder is None or not any((folder / name).exists() for name in file.split(" or "))
        ]
        missing += [f"package: {package}" for package in packages if find_spec(package) is None]
        table.add_row(name, what, "yes" if not missing else "missing " + ", ".join(missing))
    console.print(table)
    console.print(f"Run one: infobatch compare NAME --data DIR (or ${DATA_VARIABLE}).")


@app.command()
def policies() -> None:
    """List the pruning policies."""
    table = Table("policy", "what it does")
    for name, policy in sorted(POLICIES.items()):
        table.add_row(name, (policy.__doc__ or "").strip().splitlines()[0])
    console.print(table)


if __name__ == "__main__":
    app()
