"""One run as a process: ``python -m infobatch.lab.run fashion --arm infobatch --out DIR``.

Under ``torchrun`` (``torchrun --nproc-per-node 2 -m infobatch.lab.run …``) the ranks share it. A run
that was stopped continues from its checkpoint; a finished one is not repeated.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from infobatch.files import write_atomically
from infobatch.lab.options import parse_options
from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.identity import hash_of_task, what_differs
from infobatch.lab.run.result import RESULT_FILE, read_result, write_result
from infobatch.lab.run.settings import RunSettings, settings_of
from infobatch.lab.run.training import Report, Run
from infobatch.lab.run.writers import check_log, curves, open_writer
from infobatch.lab.stats.runs import Record
from infobatch.lab.task import Task, TaskError, load_task
from infobatch.lab.terminal import print_error


def main(  # noqa: PLR0917 - a command line
    task: Annotated[str, typer.Argument(help="A recipe's name, or a Python file of your own.")],
    arm: Annotated[
        str, typer.Option(help="full, short, random, infobatch, or a policy with its options.")
    ] = "infobatch",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("run-output"),
    data: Annotated[Path | None, typer.Option(help="The folder with the data sets.")] = None,
    smoke: Annotated[bool, typer.Option(help="Check that it works, with a few samples.")] = False,
    option: Annotated[list[str], typer.Option("--set", help="A recipe's option: name=value.")] = [],  # noqa: B006
    budget: Annotated[
        int | None, typer.Option(help="Sample passes that short or random may make.")
    ] = None,
    leader: Annotated[str | None, typer.Option(help="The arm whose cost sets the budget.")] = None,
    length: Annotated[float, typer.Option(help="The share of the epochs to train for.")] = 1.0,
    learning_rate: Annotated[
        float | None, typer.Option(help="The learning rate. [default: the task's]")
    ] = None,
    validation: Annotated[bool, typer.Option(help="Hold out a part of the training set.")] = False,
    selections: Annotated[
        Path | None, typer.Option(help="Where coresets are kept. [default: the run's folder]")
    ] = None,
    shadow: Annotated[
        str, typer.Option(help="Arms to follow, on all data: what would they leave out?")
    ] = "",
    log: Annotated[str | None, typer.Option(help="tensorboard or wandb.")] = None,
    events: Annotated[
        bool, typer.Option(help="Report progress to the parent process, and exit with it.")
    ] = False,
) -> None:
    """Train a task once, by one arm, with one seed."""
    if events:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with process_group():
            run_once(
                task,
                out,
                arm=arm,
                seed=seed,
                data=data,
                smoke=smoke,
                options=parse_options(option),
                budget=budget,
                leader=leader,
                length=length,
                learning_rate=learning_rate,
                validation=validation,
                selections=selections,
                shadow=shadow,
                log=log,
                events=events,
            )
    except (TaskError, ValueError) as error:
        print_error(error)
        raise typer.Exit(2) from None


def run_once(
    name: str,
    folder: Path,
    *,
    arm: str,
    seed: int,
    data: Path | None,
    smoke: bool,
    options: dict[str, str],
    budget: int | None,
    learning_rate: float | None,
    validation: bool,
    length: float = 1.0,
    leader: str | None = None,
    selections: Path | None = None,
    shadow: str = "",
    log: str | None = None,
    events: bool,
) -> None:
    """Train, write the result and what the report needs, and remove the checkpoint."""
    check_log(log)
    rule = Arm(arm)
    rule.check()
    if rule.follows and budget is None:
        raise ValueError(
            f"--arm {arm} matches the cost of another run. Expected --budget SAMPLE_PASSES."
        )
    if not 0 < length < math.inf:
        raise ValueError(
            f"--length got {length}, expected a number above 0: 0.5 trains for half the epochs."
        )
    task = load_task(name, data=data, smoke=smoke, options=options)
    chosen: dict[str, Any] = {
        "options": options,
        "validation": validation,
        "length": length,
        "task_hash": hash_of_task(name),
        "rule_hash": rule.hash,
    }
    if learning_rate is not None:
        chosen["learning_rate"] = learning_rate
    if rule.follows:
        chosen |= {"budget": budget, "leader": leader}
    settings = settings_of(task, arm=arm, seed=seed, smoke=smoke, **chosen)
    if finished := finished_before(folder, settings):
        if not events:
            _tell("Already finished: ", task, finished, folder)
        return
    for left_by_a_kill in folder.glob(".*.tmp"):
        left_by_a_kill.unlink(missing_ok=True)
    shadows = parse_arms(shadow) if shadow else []
    run = Run(task, settings, folder, selections=selections, shadows=shadows)
    with reporting(run, log=log, events=events) as report:
        record = run.train(report)
    if run.rank:
        return
    write_files(run, record)
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    if not events:
        _tell("Wrote ", task, record, folder)


def finished_before(folder: Path, settings: RunSettings) -> Record | None:
    """The result of a run with these settings that is already in the folder; another run's raises."""
    finished = read_result(folder)
    if finished is None:
        return None
    differing = what_differs(finished.settings, asdict(settings))
    if differing:
        raise ValueError(
            f"{folder} already holds a finished run with different settings: {differing}. Choose another "
            "--out, or delete the folder."
        )
    return finished


def write_files(run: Run, record: Record) -> None:
    """Write what the report needs, and then the result, whose file says that the run is finished."""
    details = run.details()

    def save_details(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **details)

    write_atomically(run.folder / "details.npz", save_details)
    samples = {int(i): _shown(run, int(i)) for i in [*details["easiest"], *details["hardest"]]}
    write_atomically(run.folder / "samples.json", lambda path: path.write_text(json.dumps(samples)))
    write_result(run.folder, record)


def _tell(prefix: str, task: Task, record: Record, folder: Path) -> None:
    saved = f"{record.saved_fraction:.1%} of {record.full_passes:,} sample passes saved"
    metric = "not finite" if record.metric is None else f"{record.metric:.4g}"
    message = f"{task.metric} {metric}, {saved}. {prefix}{folder / RESULT_FILE}"
    Console().print(message, highlight=False, markup=False, soft_wrap=True)


def _shown(run: Run, index: int) -> Any:
    """A sample as JSON: a string, or rows of pixels."""
    shown = run.shown(index)
    return shown if shown is None or isinstance(shown, str) else np.asarray(shown).tolist()


@contextmanager
def reporting(run: Run, *, log: str | None, events: bool) -> Iterator[Report]:
    """Report a run's progress to a person or a parent process, and to a writer of curves."""
    with ExitStack() as stack:
        reports: list[Report] = []
        if run.rank == 0 and events:
            reports.append(lambda standing: print(json.dumps(standing), flush=True))
        elif run.rank == 0:
            reports.append(_bar(stack))
        if run.rank == 0 and log is not None:
            name = f"{run.task.name}-{run.arm.name}-{run.settings.seed}"
            writer = open_writer(log, run.folder, name)
            stack.callback(writer.close)

            def write(standing: dict[str, Any]) -> None:
                if standing["epoch_ended"]:
                    numbers = curves(standing["last"], run.task.metric)
                    writer.log(numbers, standing["last"]["epoch"])

            reports.append(write)

        def report(standing: dict[str, Any]) -> None:
            for tell in reports:
                tell(standing)

        yield report


def _bar(stack: ExitStack) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    console = Console(stderr=True)
    progress = stack.enter_context(Progress(*columns, TimeRemainingColumn(), console=console))
    bar = progress.add_task("training", total=1.0)

    def report(standing: dict[str, Any]) -> None:
        metric = (standing["last"] or {}).get("metric")
        so_far = "" if metric is None else f", {metric:.4g}"
        text = f"{standing['arm']} epoch {standing['epoch']}/{standing['epochs']}{so_far}"
        progress.update(bar, completed=standing["done"], description=text)

    return report


def _end_with_parent() -> None:
    """Wait until the parent's pipe closes, which happens even if the parent is killed."""
    sys.stdin.read()
    os._exit(1)


@contextmanager
def process_group() -> Iterator[None]:
    """Join the ranks that torchrun has started, if any."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
