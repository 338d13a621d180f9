"""Runs as child processes, optionally several at once, which share only their folders.

A child ends when its parent does, for whatever reason: it watches a pipe that only the parent holds
open. It leaves a checkpoint or a result, each written atomically.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

from infobatch.lab.run.result import RESULT_FILE, read_result
from infobatch.lab.stats.runs import Record

Listener = Callable[["Job", dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """A run to be made: its folder, the arguments of ``infobatch.lab.run``, and its leader."""

    arm: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    leader: Job | None = None  # the run whose cost this one matches
    length: float = 1.0

    @property
    def result(self) -> Record | None:
        """The finished run's record, or None."""
        return read_result(self.folder)

    @property
    def ready(self) -> bool:
        """Whether it can begin."""
        return self.leader is None or (self.leader.folder / RESULT_FILE).exists()

    def command(self) -> list[str]:
        """The command line of the child process."""
        command = [sys.executable, "-m", "infobatch.lab.run", *self.arguments, "--events"]
        command += ["--arm", self.arm, "--seed", str(self.seed), "--out", str(self.folder)]
        if self.leader is not None:
            leader = self.leader.result
            assert leader is not None
            command += ["--budget", str(leader.costs.samples_forwarded)]
            command += ["--leader", self.leader.arm]
        return command


class JobFailed(Exception):  # noqa: N818 - it says what happened
    """A run ended without a result."""

    def __init__(self, job: Job, output: str) -> None:
        last = output.strip().splitlines()[-1:] or ["no output"]
        super().__init__(
            f"The run {job.arm}, length {job.length:g}, seed {job.seed} failed: {last[0].removeprefix('Error: ')}\n"
            f"All of its output is in {job.folder / 'log.txt'}. Finished runs are kept; run the same "
            "command to resume."
        )


def run_jobs(jobs: Sequence[Job], *, at_once: int, listen: Listener) -> None:
    """Make the runs that are not finished yet, in order, at most ``at_once`` at a time."""
    waiting = [job for job in jobs if job.result is None]
    news: Queue[tuple[Job, dict[str, Any] | int]] = Queue()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads_per_run(at_once))}
    running = 0
    with ExitStack() as children:
        while waiting or running:
            for job in [job for job in waiting if job.ready][: at_once - running]:
                waiting.remove(job)
                listen(job, {"started": True})
                children.enter_context(_Child(job, news, environment))
                running += 1
            try:
                job, event = news.get(timeout=1.0)
            except Empty:  # wake up regularly, so that Ctrl-C is noticed
                continue
            if isinstance(event, dict):
                listen(job, event)
                continue
            running -= 1
            if job.result is None:
                raise JobFailed(job, (job.folder / "log.txt").read_text(errors="replace"))
            listen(job, {"finished": True})


def threads_per_run(at_once: int) -> int:
    """The number of cores for each of several runs, or fewer if the user says so."""
    share = max(1, (os.cpu_count() or 1) // at_once)
    stated = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(stated)) if stated.isdigit() and int(stated) else share


class _Child:
    """A child process and the thread that listens to it; leaving the context ends it."""

    def __init__(
        self, job: Job, news: Queue[tuple[Job, dict[str, Any] | int]], environment: dict[str, str]
    ) -> None:
        self._job, self._news, self._environment = job, news, environment

    def __enter__(self) -> None:
        self._job.folder.mkdir(parents=True, exist_ok=True)
        with (self._job.folder / "log.txt").open("a") as log:
            self._process = subprocess.Popen(
                self._job.command(),
                stdin=subprocess.PIPE,  # closing it tells the child that the parent is gone
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        assert self._process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,))
        self._listener.start()

    def _listen(self, output: IO[str]) -> None:
        with output:
            for line in output:
                if line.startswith("{"):
                    self._news.put((self._job, json.loads(line)))
        self._news.put((self._job, self._process.wait()))

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._listener.join()
