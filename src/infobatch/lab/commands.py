"""The commands that train something, or show what was concluded from it."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from infobatch.lab.compare.answer import print_answer
from infobatch.lab.compare.comparison import Comparison
from infobatch.lab.compare.jobs import JobFailed
from infobatch.lab.compare.live import LiveTable
from infobatch.lab.compare.results import read_results
from infobatch.lab.options import parse_options
from infobatch.lab.report.page import write_report
from infobatch.lab.run.arms import parse_arms
from infobatch.lab.run.scoring import score_task
from infobatch.lab.run.writers import check_log
from infobatch.lab.stats.runs import FULL_LENGTH
from infobatch.lab.task import TaskError, load_task
from infobatch.lab.terminal import print_error

ARMS = "full,random,infobatch,quantile,auto"
ARMS_OF_ONE_LENGTH = "full,short,random,infobatch,quantile,auto"
ENDINGS = (".npz", ".csv", ".parquet")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print errors without a traceback; on Ctrl-C, say how to resume."""
    try:
        yield
    except (TaskError, ValueError, JobFailed) as error:
        print_error(error)
        raise typer.Exit(1 if isinstance(error, JobFailed) else 2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. Run the same command to resume.")
        raise typer.Exit(130) from None


def compare(
    task: str,
    *,
    arms: str | None,
    lengths: str,
    seeds: int,
    most_seeds: int | None,
    out: Path,
    data: Path | None,
    smoke: bool,
    jobs: int,
    learning_rates: str | None,
    rate_seeds: int | None,
    rate_length: float | None,
    options: list[str],
    log: str | None,
) -> None:
    """Make the missing runs, and print the result of all of them."""
    console = Console()
    with plain_errors():
        shares = parse_lengths(lengths)
        usual_arms = ARMS if len(shares) > 1 else ARMS_OF_ONE_LENGTH
        check_log(log)
        check_data(data)
        comparison = Comparison(
            task,
            parse_arms(usual_arms if arms is None else arms),
            seeds,
            out,
            lengths=shares,
            most_seeds=most_seeds,
            data=data,
            smoke=smoke,
            options=parse_options(options),
            learning_rates=parse_rates(learning_rates),
            rate_seeds=rate_seeds,
            rate_length=rate_length,
            log=log,
            command=shlex.join(["infobatch", *sys.argv[1:]]),
        )
        check_writable(out, folder=out)
        with LiveTable(console, comparison) as live:
            results = comparison.run(at_once=jobs, watch=live.watch)
        print_answer(console, results)
        page = write_report(out)
        console.print(f"Wrote {out / 'results.json'} and {page}", soft_wrap=True, highlight=False)


def score(
    task: str,
    *,
    out: Path,
    checkpoint: Path | None,
    proxy: bool,
    seed: int,
    data: Path | None,
    smoke: bool,
    options: list[str],
) -> None:
    """Score a task's training set, and print the cost."""
    with plain_errors():
        check_data(data)
        check_file(out)
        loaded = load_task(task, data=data, smoke=smoke, options=parse_options(options))
        count, cost = score_task(
            loaded, out, checkpoint=checkpoint, proxy=proxy, smoke=smoke, seed=seed
        )
        message = (
            f"Scored {count:,} samples, which costs {cost:,.0f} training steps of one sample. "
        )
        Console().print(f"{message}Wrote {out}", soft_wrap=True, highlight=False, markup=False)


def report(folder: Path) -> None:
    """Print the result of a comparison, and write its page again."""
    console = Console()
    with plain_errors():
        print_answer(console, read_results(folder))
        console.print(f"Wrote {write_report(folder)}", soft_wrap=True, highlight=False)


def parse_lengths(text: str) -> list[float]:
    """Read shares of the epochs, which must include 1; some may be above it."""
    lengths = _numbers(text)
    if FULL_LENGTH not in lengths or len(set(lengths)) < len(lengths):
        raise ValueError(
            f"--lengths got {text!r}, expected different shares of the epochs, 1 among them: "
            "0.4,0.6,0.8,1; some may be above 1: 0.4,0.7,1,1.3."
        )
    return lengths


def parse_rates(text: str | None) -> list[float]:
    """Read a grid of learning rates."""
    if text is None:
        return []
    rates = _numbers(text)
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(
            f"--learning-rates got {text!r}, expected different positive numbers: 0.03,0.1,0.3."
        )
    return rates


def _numbers(text: str) -> list[float]:
    """Read positive numbers; return none if any number is not positive."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return numbers if all(0 < number < float("inf") for number in numbers) else []


def check_data(folder: Path | None) -> None:
    """Raise an error if a data folder does not exist."""
    if folder is not None and not folder.is_dir():
        raise ValueError(
            f"--data got {folder}, which is not a folder. Expected the one with the data sets."
        )


def check_file(out: Path) -> None:
    """Raise an error if a file of samples cannot be written, before anything starts."""
    if out.suffix not in ENDINGS:
        raise ValueError(
            f"--out got {out}, expected a file name that ends in {', '.join(ENDINGS)}."
        )
    check_writable(out, folder=out.parent)


def check_writable(out: Path, *, folder: Path) -> None:
    """Raise an error if the folder of ``--out`` is not writable, before anything starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"--out got {out}, which cannot be written ({error.strerror}). Choose another folder."
        ) from error
