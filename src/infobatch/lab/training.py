"""One run: a task trained once by one arm with one seed, its costs counted, resumable at any step.

Every arm walks the same code: the full one has a policy that prunes nothing, so arms differ in what
they prune and in nothing else, and every one continues from a checkpoint bit for bit. (With one
exception: where loader workers draw random numbers and the checkpoint is from within an epoch, the
rest of that epoch has draws of its own.)
"""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset, random_split

import infobatch
from infobatch.lab.arms import DELTA, SHORT, Arm
from infobatch.lab.files import write_atomically
from infobatch.lab.identity import what_differs
from infobatch.lab.task import Task, TaskError, size_of

SMOKE_TRAIN, SMOKE_TEST, SMOKE_EPOCHS, SMOKE_BATCH = 256, 128, 3, 32
CHECKPOINT_SECONDS = 20.0
VALIDATION_SHARE = 0.1
RANK_STRIDE = 1_000_003  # between the seeds of two ranks: farther than users' seeds are apart

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RunSettings:
    """What makes one run: the same settings give the same result."""

    task: str
    arm: str
    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    budget: int | None = None  # sample passes of an arm that costs what another did
    leader: str | None = None  # that other arm
    smoke: bool = False
    validation: bool = False  # train on nine tenths and measure on the rest, to choose settings
    options: dict[str, str] = field(default_factory=dict)
    task_hash: str | None = None  # of the text of a user's own file


@dataclass
class Costs:
    """What a run has cost so far."""

    samples_forwarded: int = 0
    samples_backpropagated: int = 0
    optimizer_steps: int = 0
    seconds: float = 0.0  # of training; evaluation is not counted
    overhead_seconds: float = 0.0  # of that: drawing plans and update(), the mean included
    peak_memory_mb: float | None = None  # of the GPU where there is one; None where nobody tells


@dataclass(frozen=True)
class Result:
    """A finished run: one record of results.json."""

    arm: str
    seed: int
    settings: dict[str, Any]
    metric: float | None  # the last epoch's on the test set; None if it was not finite
    costs: dict[str, Any]
    num_samples: int
    full_passes: int  # what training on all data takes
    saved_fraction: float
    history: list[dict[str, Any]]
    versions: dict[str, str]
    extra_metrics: dict[str, float | None] = field(default_factory=dict)  # of the finished model


class Run:
    """A training under way."""

    def __init__(self, task: Task, settings: RunSettings, folder: Path) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.arm = Arm(settings.arm)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        seed_everything(settings.seed)
        self.train_set, self.test_set = self._data()
        self.num_samples = len(self.train_set)  # type: ignore[arg-type]
        self.model = task.model().to(self.device)
        if self.rank:  # one initial model, but noise and augmentation of its own for each rank
            seed_everything(settings.seed + RANK_STRIDE * self.rank)
        self.optimizer = task.optimizer(self.model, settings.learning_rate)
        global_batch = settings.batch_size * self.world_size
        self.full_steps = math.ceil(self.num_samples / global_batch)
        self.max_steps = self.full_steps * settings.epochs
        if self.arm.name == SHORT:
            assert settings.budget is not None
            self.max_steps = max(1, round(settings.budget / global_batch))
        self.epochs = math.ceil(self.max_steps / self.full_steps)
        policy = self.arm.policy(
            num_samples=self.num_samples, epochs=self.epochs, budget=settings.budget
        )
        self.train_data = infobatch.InfoBatch(
            self.train_set, self.epochs, policy=policy, delta=DELTA, seed=settings.seed
        )
        self.loader = DataLoader(
            self.train_data,
            settings.batch_size,
            sampler=self.train_data.sampler,
            num_workers=task.num_workers,
            collate_fn=task.collate,
            generator=torch.Generator(),  # for the workers' seeds; the global one stays as it is
        )
        self.schedule = infobatch.paced(
            task.schedule(self.optimizer, self.max_steps),
            self.train_data,
            steps_per_epoch=self.full_steps,
        )
        self.costs = Costs()
        self.history: list[dict[str, Any]] = []
        self.visits = np.zeros(self.num_samples, np.uint16)
        self.epochs_seen = 0  # epochs whose plan was looked at
        self.loss_sum = torch.zeros((), device=self.device)  # of the running epoch
        self.snapshot: dict[str, torch.Tensor] = {}

    def _data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        sets = self.task.data()
        if not isinstance(sets, tuple | list) or len(sets) != 2:
            raise TaskError(f"{self.task.name}: data() must return two data sets (train, test).")
        train, test = sets
        train_size, test_size = size_of(self.task.name, train), size_of(self.task.name, test)
        if self.settings.smoke:
            train = Subset(train, range(min(SMOKE_TRAIN, train_size)))
            test = Subset(test, range(min(SMOKE_TEST, test_size)))
        if self.settings.validation:  # the same split for every arm and seed
            generator = torch.Generator().manual_seed(0)
            train, test = random_split(train, [1 - VALIDATION_SHARE, VALIDATION_SHARE], generator)
        return train, test

    # Training.

    def train(self, report: Report) -> Result:
        """Train to the end, from a checkpoint if there is one, and return the result."""
        self._restore()
        model: nn.Module = self.model
        if self.world_size > 1:
            model = DistributedDataParallel(self.model)
        for epoch in range(self.train_data.epoch, self.epochs):
            # Asked before each epoch: ``short`` ends within one, which a checkpoint calls unfinished.
            if self.costs.optimizer_steps >= self.max_steps:
                break
            self._train_epoch(model, epoch, report)
        return self._result()

    def _train_epoch(self, model: nn.Module, epoch: int, report: Report) -> None:
        model.train()
        train_data, costs = self.train_data, self.costs
        began = self._clock()
        with self._overhead():
            batches = len(self.loader)  # draws the epoch's plan
        costs.seconds += self._clock() - began
        self._look_at_plan(epoch)
        self._seed_workers()
        began = saved = self._clock()
        for batch in self.loader:
            losses = self.task.losses(model, to_device(batch, self.device))
            with self._overhead():
                loss = train_data.update(losses)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            count = len(losses.losses if isinstance(losses, infobatch.PerSample) else losses)
            costs.samples_forwarded += count * self.world_size
            costs.samples_backpropagated += count * self.world_size
            costs.optimizer_steps += 1
            batches -= 1
            self.loss_sum += loss.detach() * count
            if costs.optimizer_steps >= self.max_steps:
                break
            due = time.perf_counter() - saved > CHECKPOINT_SECONDS
            if batches and due and self.world_size == 1:
                costs.seconds += self._clock() - began
                self._save()
                report(self._standing(epoch, epoch_ended=False))
                began = saved = self._clock()
        costs.seconds += self._clock() - began
        last = train_data.savings.epochs[-1]
        is_last = epoch + 1 == self.epochs or costs.optimizer_steps >= self.max_steps
        measured = is_last or (epoch + 1) % self.task.evaluate_every == 0
        # The weights of an epoch sum to the number of samples.
        weight = self.num_samples * last.made / last.planned / self.world_size
        self.history.append(
            {
                "epoch": epoch,
                "metric": self._evaluate() if measured else None,
                "train_loss": finite(float(self.loss_sum) / weight),
                "kept_fraction": last.kept_fraction,
                "samples": last.made,
                "samples_saved": train_data.savings.saved,
                "thresholds": list(last.thresholds),
                "learning_rate": float(self.schedule.get_last_lr()[0]),
                "seconds": costs.seconds,
            }
        )
        self.loss_sum.zero_()
        self._save()
        report(self._standing(epoch + 1, epoch_ended=True))

    def _evaluate(self) -> float | None:
        value = self.task.evaluate(self.model.eval(), self.test_set)
        try:
            return finite(float(value))
        except (TypeError, ValueError):
            raise TaskError(
                f"{self.task.name}: evaluate() returned {type(value).__name__}, expected a number."
            ) from None

    def _look_at_plan(self, epoch: int) -> None:
        """Count the visits, and keep one pruned epoch's picture for the report."""
        if self.epochs_seen > epoch:  # resumed in the middle of it
            return
        self.epochs_seen = epoch + 1
        plan = self.train_data.plan
        self.visits[plan.order.numpy()] += 1
        if self.arm.prunes and not plan.whole and epoch >= self.epochs // 2 and not self.snapshot:
            self.snapshot = {
                "epoch": torch.tensor(epoch),
                "scores": self.train_data.scores,
                "order": plan.order,
                "weights": plan.weights,
            }

    def _seed_workers(self) -> None:
        """Seed the loader's workers by where the run stands, so that a resumed one goes on.

        At the start of an epoch that is the same as in a run that was never stopped; within one it is
        a new place. Each rank has its own, as for the main process.
        """
        place = (self.settings.seed, self.rank, self.costs.optimizer_steps)
        seed = np.random.SeedSequence(place).generate_state(1, np.uint64)[0]
        self.loader.generator.manual_seed(int(seed))

    def _clock(self) -> float:
        """The time at which the device has done what it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def _overhead(self) -> Iterator[None]:
        """Count host time: to wait for a GPU at each step would cost more than it measures."""
        began = time.perf_counter()
        yield
        self.costs.overhead_seconds += time.perf_counter() - began

    def _standing(self, epochs_done: int, *, epoch_ended: bool) -> dict[str, Any]:
        return {
            "arm": self.arm.name,
            "seed": self.settings.seed,
            "epoch": epochs_done,
            "epochs": self.epochs,
            "done": self.costs.optimizer_steps / self.max_steps
            if self.arm.name == SHORT
            else min(1.0, self.schedule.last_epoch / self.max_steps),
            "seconds": self.costs.seconds,
            "last": self.history[-1] if self.history else None,
            "epoch_ended": epoch_ended,  # just now: ``last`` is new
        }

    # Checkpoints.

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def _save(self) -> None:
        data = self.train_data.state_dict()  # collective
        random = self._random_states()  # collective, too
        if self.rank:
            return
        self._note_memory()
        state = {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "data": data,
            "random": random,
            "costs": asdict(self.costs),
            "history": self.history,
            "visits": torch.from_numpy(self.visits.astype(np.int32)),
            "epochs_seen": self.epochs_seen,
            "loss_sum": self.loss_sum,
            "snapshot": self.snapshot,
        }
        write_atomically(self._checkpoint, lambda path: torch.save(state, path))

    def _random_states(self) -> list[dict[str, torch.Tensor]]:
        """The state of each rank's random generators."""
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state()
        states = [own] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(states, own)
        return states

    def _restore(self) -> None:
        if not self._checkpoint.exists():
            return
        try:
            state = torch.load(self._checkpoint, weights_only=True, map_location="cpu")
        except Exception as error:  # many kinds, for a file can be damaged in many ways
            raise TaskError(
                f"{self._checkpoint} is damaged and cannot be read ({type(error).__name__}: {error}). "
                "Delete it: the run is then made anew."
            ) from error
        differing = what_differs(state["settings"], asdict(self.settings))
        if differing:
            raise TaskError(
                f"{self._checkpoint} is of a run with other settings: {differing}. Expected those it "
                f"was begun with; choose another --out, or delete {self.folder}."
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.train_data.load_state_dict(state["data"])
        if self.rank < len(state["random"]):  # with more ranks than before, the new ones start anew
            own = state["random"][self.rank]
            torch.set_rng_state(own["cpu"])
            if self.device.type == "cuda" and "cuda" in own:
                torch.cuda.set_rng_state(own["cuda"])
        self.costs = Costs(**state["costs"])
        self.history = state["history"]
        self.visits = state["visits"].numpy().astype(np.uint16)
        self.epochs_seen = state["epochs_seen"]
        self.loss_sum = state["loss_sum"].to(self.device)
        self.snapshot = state["snapshot"]

    # What comes out.

    def _result(self) -> Result:
        full_passes = self.num_samples * self.settings.epochs
        self._note_memory()
        return Result(
            arm=self.arm.name,
            seed=self.settings.seed,
            settings=asdict(self.settings),
            metric=self.history[-1]["metric"],
            costs=asdict(self.costs),
            num_samples=self.num_samples,
            full_passes=full_passes,
            saved_fraction=1 - self.costs.samples_forwarded / full_passes,
            history=self.history,
            versions=versions(),
            extra_metrics=self._extra_metrics(),
        )

    def _extra_metrics(self) -> dict[str, float | None]:
        diverged = self.history[-1]["metric"] is None  # its outputs may not be numbers
        if self.task.extra_metrics is None or self.rank or diverged:
            return {}
        found = self.task.extra_metrics(self.model.eval(), self.test_set)
        return {name: finite(float(value)) for name, value in found.items()}

    def _note_memory(self) -> None:
        known = (self.costs.peak_memory_mb, peak_memory_mb(self.device))
        self.costs.peak_memory_mb = max((one for one in known if one is not None), default=None)

    def details(self) -> dict[str, Any]:
        """What the report draws beyond the result: by sample, so kept in a file of its own."""
        scores = self.train_data.scores.numpy()
        seen = np.flatnonzero(np.isfinite(scores))
        by_score = seen[np.argsort(scores[seen], kind="stable")]
        labels = self.task.labels(self.train_set) if self.task.labels is not None else None
        return {
            "scores": scores,
            "visits": self.visits,
            "easiest": by_score[:12],
            "hardest": by_score[::-1][:12],
            **({} if labels is None else {"labels": np.asarray(labels)}),
            **{f"snapshot_{name}": value.numpy() for name, value in self.snapshot.items()},
        }

    def shown(self, index: int) -> Any:
        """A training sample for the report: a text, an array of pixels, or None."""
        return None if self.task.show is None else self.task.show(self.train_set, index)


def settings_of(
    task: Task, *, arm: str, seed: int, smoke: bool = False, **more: Any
) -> RunSettings:
    """The settings of a run of a task."""
    settings = RunSettings(
        task=task.name,
        arm=arm,
        seed=seed,
        epochs=SMOKE_EPOCHS if smoke else task.epochs,
        batch_size=min(task.batch_size, SMOKE_BATCH) if smoke else task.batch_size,
        learning_rate=task.learning_rate,
        smoke=smoke,
    )
    return replace(settings, **more)


def finite(value: float) -> float | None:
    """The value, or None for what JSON cannot hold: NaN and infinities of a diverged run."""
    return value if math.isfinite(value) else None


def seed_everything(seed: int) -> None:
    """Seed what a task may draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a user's task may use numpy's global generator


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch of tensors in tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def peak_memory_mb(device: torch.device) -> float | None:
    """The most memory that this process has had, in megabytes: the GPU's if it trains on one.

    None where the system does not tell, as on Windows.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / (1 << 20)
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def versions() -> dict[str, str]:
    """What a result was made with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "infobatch": infobatch.__version__,
    }
