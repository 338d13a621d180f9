"""One run: a task trained once by one arm with one seed, its costs counted, resumable at any step.

Every arm runs the same code: the full one has a policy that prunes nothing, so arms differ only in
what they prune, and every arm continues from a checkpoint bit for bit. (There is one exception: if
loader workers draw random numbers and the checkpoint is from within an epoch, the rest of that
epoch has different draws.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Subset

import infobatch
from infobatch.coresets import Coreset
from infobatch.experimental.blocking import Blocking, PredictedSizes, Rarity
from infobatch.experimental.flops import forward_flops, share_before
from infobatch.experimental.hardest import Hardest
from infobatch.experimental.proxy import Proxy
from infobatch.files import write_atomically
from infobatch.lab.files import from_json
from infobatch.lab.run.arms import PROXY, Arm
from infobatch.lab.run.checkpoint import random_states, read_checkpoint, restore_random_states
from infobatch.lab.run.data import data_of, seed_everything, to_device
from infobatch.lab.run.length import steps_for, steps_per_epoch
from infobatch.lab.run.machine import cpu_seconds, hardware, peak_memory_mb, versions
from infobatch.lab.run.result import finite, rounded
from infobatch.lab.run.schedule import EndingSchedule
from infobatch.lab.run.selection import Selection, charge
from infobatch.lab.run.settings import RunSettings
from infobatch.lab.run.steps import (
    BlockedSteps,
    MeasuredSteps,
    PlannedSteps,
    ProbedSteps,
    ProxiedSteps,
    Recording,
    Step,
    Steps,
    StreamedSteps,
    per_sample,
)
from infobatch.lab.run.weighted import Weighted, WithWeights, scaled
from infobatch.lab.stats.runs import SHORT, Costs, Epoch, Record
from infobatch.lab.task import Task, TaskError
from infobatch.memory.export import read_cost, read_scores
from infobatch.plan import FloatArray
from infobatch.policies import Policy
from infobatch.policies.baselines.afss import AfssPrune
from infobatch.policies.options import name_of
from infobatch.savings import FORWARD, EpochPasses
from infobatch.tracks import Track

CHECKPOINT_SECONDS = 20.0
ROUNDING = 1e-6  # of positions in the schedule, which are fractions
RANK_STRIDE = 1_000_003  # between the seeds of two ranks: more than users' seeds differ

Report = Callable[[dict[str, Any]], None]


class Run:
    """A training run in progress, on all data perhaps with ``shadows``: arms that are only followed."""

    _shadow_seconds = 0.0  # what following them took so far

    def __init__(
        self,
        task: Task,
        settings: RunSettings,
        folder: Path,
        *,
        selections: Path | None = None,
        shadows: Sequence[Arm] = (),
        tracks: Sequence[Track] = (),
    ) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.arm, self.shadows = Arm(settings.arm), {arm.name: arm.options for arm in shadows}
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        seed_everything(settings.seed)
        self.train_set, self.test_set = data_of(task, settings)
        self.num_all = len(self.train_set)  # type: ignore[arg-type]
        self.coreset = self._choose(selections or folder)
        self.num_samples = len(self.train_set)  # type: ignore[arg-type]
        self.model = task.model().to(self.device)
        if self.rank:  # the same initial model, but separate random numbers per rank
            seed_everything(settings.seed + RANK_STRIDE * self.rank)
        self.optimizer = task.optimizer(self.model, settings.learning_rate)
        self.batch = settings.batch_size * self.world_size
        self.full_steps = steps_per_epoch(self.num_samples, self.batch)
        # The number of full-data steps in the schedule, regardless of pruning.
        self.total_steps = steps_for(
            self._full_data_passes(), num_samples=self.num_samples, batch=self.batch
        )
        self.epochs = math.ceil(self.total_steps / self.full_steps)
        policy = self.arm.policy(
            num_samples=self.num_samples,
            passes=self._full_data_passes(),
            epochs=self.epochs,
            budget=settings.budget,
        )
        if isinstance(policy, AfssPrune):
            policy = replace(policy, extras=True)  # its scores are not the task's
        data, collate = self.train_set, task.collate
        if self._weighted:
            assert self.coreset is not None
            data, collate = Weighted(data, self.coreset.weights), WithWeights(collate)
        self.train_data = infobatch.InfoBatch(
            data,
            self.epochs,
            policy=policy,
            delta=self.arm.delta,
            seed=settings.seed,
            labels=self._labels_for(policy),
            initial_scores=self._initial_scores(),
            shadow=tuple({name_of(rule): rule for rule in self.shadows.values()}.values()),
            tracks=tracks,
            **self.arm.limits,
        )
        self.loader = DataLoader(
            self.train_data,
            # A pruned epoch's last batch could have one sample, so that BatchNorm would favour full
            # data.
            batch_sampler=self.train_data.batch_sampler(
                settings.batch_size, shrink=self.arm.shrink, even=True
            ),
            num_workers=task.num_workers,
            collate_fn=collate,
            generator=torch.Generator(),  # for the workers' seeds; the global one does not change
        )
        schedule = EndingSchedule(task.schedule(self.optimizer, self.total_steps), self.total_steps)
        self.schedule = infobatch.paced(
            cast(LRScheduler, schedule),
            self.train_data,
            steps_per_epoch=self.full_steps,
        )
        scored = 0.0 if self.arm.scores is None else read_cost(self.arm.scores)
        on_gpu = self.device.type == "cuda"
        self.costs = Costs(samples_forwarded=round(scored), cpu_seconds=None if on_gpu else 0.0)
        if self.coreset is not None and self.rank == 0:  # whose costs are written
            charge(self.costs, self.coreset.cost)
        self.history: list[dict[str, Any]] = []
        self.steps = self._steps()
        self.epochs_seen = 0  # epochs whose plan was recorded
        self.position = 0.0  # in full-data steps: where the schedule stands
        self.loss_sum = torch.zeros((), device=self.device)  # of the running epoch
        self.snapshot: dict[str, torch.Tensor] = {}

    def _layer(self, name: str) -> nn.Module:
        """The layer of the model that an arm names."""
        try:
            return self.model.get_submodule(name)
        except AttributeError:
            known = ", ".join(name for name, _ in self.model.named_modules() if name)
            raise TaskError(
                f"The arm {self.arm.name} names a layer {name!r} that the model does not have. Expected one "
                f"of {known}."
            ) from None

    def _steps(self) -> Steps:
        """How the arm trains on a batch."""
        if self.arm.probe is not None:
            probe = infobatch.Probe(self._layer(self.arm.probe))
            return ProbedSteps(self.train_data, self._losses, self._overhead, probe)
        if isinstance(self.train_data.policy, AfssPrune):
            return MeasuredSteps(self.train_data, self._losses, self._overhead, self._qualities())
        if self.arm.stream is None:
            return PlannedSteps(self.train_data, self._losses, self._overhead)
        self._require_one_process("each would train on a different number of samples")
        chooser = self.arm.chooser(seed=self.settings.seed, ramp=self.total_steps // 2)
        if self.arm.rule == PROXY:
            return self._proxied_steps(chooser)
        if self.arm.layer is not None:
            return self._blocked_steps(self._layer(self.arm.layer), chooser)
        assert isinstance(chooser, infobatch.StreamPruner)
        return StreamedSteps(self.train_data, self._losses, self._overhead, chooser)

    def _blocked_steps(self, layer: nn.Module, chooser: infobatch.StreamPruner | Hardest) -> Steps:
        """Steps in which samples are left out after a layer of the model."""
        with torch.random.fork_rng():
            cost = share_before(layer, self.model, self._inputs())
        scorer = Rarity() if isinstance(chooser, Hardest) else PredictedSizes()
        blocking = Blocking(layer, scorer, chooser, cost=cost)
        return BlockedSteps(self.train_data, self._losses, self._overhead, blocking)

    def _proxied_steps(self, chooser: infobatch.StreamPruner | Hardest) -> Steps:
        """Steps on what the task's proxy keeps, which is trained like the model."""
        if self.task.proxy is None:
            raise TaskError(
                f"{self.task.name} does not define proxy(), which the arm {self.arm.name} needs: a smaller model that "
                "losses() also accepts."
            )
        with torch.random.fork_rng():  # the model's random numbers are those of the other arms
            small = self.task.proxy().to(self.device)
            inputs = self._inputs()
        optimizer = self.task.optimizer(small, self.settings.learning_rate)
        schedule = EndingSchedule(self.task.schedule(optimizer, self.total_steps), self.total_steps)
        cost = forward_flops(small, inputs) / forward_flops(self.model, inputs)
        proxy = Proxy(small, optimizer, chooser, cost=cost, every=self.arm.every)
        return ProxiedSteps(self.train_data, self._losses, self._overhead, proxy, schedule)

    def _inputs(self) -> torch.Tensor:
        """What the model is called with for a few samples, to count its operations."""
        samples = [self.train_data[index] for index in range(min(8, self.num_samples))]
        inputs: list[torch.Tensor] = []
        with torch.no_grad():
            recording = Recording(self.model, inputs).eval()
            self._losses(recording, to_device(self.loader.collate_fn(samples), self.device))
        return inputs[0]

    def _qualities(self) -> Callable[[], torch.Tensor]:
        """How the quality of each training sample is measured, which AFSS needs."""
        measure = self.task.qualities
        if measure is None:
            raise TaskError(
                f"{self.task.name} does not define qualities(), which the arm {self.arm.name} needs: "
                "qualities(model, data) -> how good the model is on each training sample, from 0 to 1."
            )
        self._require_one_process("each would measure the quality of all samples")
        return lambda: measure(self.model, self.train_set)

    def _require_one_process(self, reason: str) -> None:
        if self.world_size > 1:
            raise TaskError(
                f"The arm {self.arm.name} was started on {self.world_size} processes, expected one: "
                f"{reason}. Start it without torchrun."
            )

    def _choose(self, folder: Path) -> Coreset | None:
        """Choose the subset that the arm trains on, if it does not train on all data."""
        if self.arm.coreset is None:
            return None
        spec, bar = self.arm.coreset, self.rank == 0
        wanted = Selection(self.task, self.train_set, spec, self.settings, folder, progress=bar)
        chosen = wanted.chosen()
        self.train_set = chosen.subset(self.train_set)
        seed_everything(self.settings.seed)  # the same whether it was chosen now or before
        return chosen

    @property
    def _weighted(self) -> bool:
        """Whether samples of the coreset weigh differently."""
        return self.coreset is not None and bool((self.coreset.weights != 1).any())

    def _labels_for(self, policy: Policy) -> Any:
        """The class of each sample, if the arm needs it."""
        needed = bool({"protect_classes", "order"} & self.arm.limits.keys()) or policy.needs_labels
        if not needed and not any(options.needs_labels for options in self.shadows.values()):
            return None
        if self.task.labels is None:
            raise TaskError(
                f"{self.task.name} does not define labels(), which the arm {self.arm.name} needs: "
                "labels(data) -> the class of each training sample."
            )
        return np.asarray(self.task.labels(self.train_set))

    def _full_data_passes(self) -> int:
        """The sample passes that this run would make without pruning."""
        if self.arm.rule == SHORT:
            assert self.settings.budget is not None
            return self.settings.budget
        return round(self.settings.length * self.settings.epochs * self.num_samples)

    def _initial_scores(self) -> FloatArray | None:
        """The arm's scores of the samples that this run trains on."""
        if not self.settings.validation:
            return read_scores(self.arm.scores, self.num_samples)
        split = cast("Subset[Any]", self.train_set)
        scores = read_scores(self.arm.scores, len(split.dataset))  # type: ignore[arg-type]
        return None if scores is None else scores[np.asarray(split.indices)]

    # Training.

    def train(self, report: Report) -> Record:
        """Train to the end, from a checkpoint if there is one, and return the result."""
        self._restore()
        model: nn.Module = self.model
        if self.world_size > 1:
            model = DistributedDataParallel(self.model)
        for epoch in range(self.train_data.epoch, self.epochs):
            # Checked before each epoch: a run may end within one, which a checkpoint calls
            # unfinished.
            if self.ended:
                break
            self._train_epoch(model, epoch, report)
        return self._result()

    def _train_epoch(self, model: nn.Module, epoch: int, report: Report) -> None:
        model.train()
        if self.task.begin_epoch is not None:
            self.task.begin_epoch(epoch)
        train_data, costs = self.train_data, self.costs
        self._start_timing()
        with self._overhead():
            train_data.set_epoch(epoch)  # or len() would be that of the finished epoch
            batches = len(self.loader)  # draws the epoch's plan
        self._stop_timing()
        self._look_at_plan(epoch)
        self._seed_workers()
        in_epoch = self._steps_in_epoch()
        self._start_timing()
        saved = time.perf_counter()
        for batch in self.loader:
            step = self.steps.take(model, to_device(batch, self.device))
            self._descend(step)
            costs.samples_forwarded += step.forwarded * self.world_size
            costs.samples_backpropagated += step.backpropagated * self.world_size
            costs.optimizer_steps += 1
            self.loss_sum += step.loss.detach() * self._divisor(step.size, in_epoch - batches)
            batches -= 1
            # In full-data steps: a step of a pruned epoch counts for more than one.
            self.position = (epoch + (in_epoch - batches) / in_epoch) * self.full_steps
            self.schedule.step()
            if self.ended:
                break
            due = time.perf_counter() - saved > CHECKPOINT_SECONDS
            if batches and due and self.world_size == 1:
                self._stop_timing()
                self._save()
                report(self._standing(epoch, epoch_ended=False))
                self._start_timing()
                saved = time.perf_counter()
        if not self.ended:
            self.steps.end_epoch()
            if train_data.pruner.policy.refreshes:
                self._refresh()
        self._stop_timing()
        self._close_epoch(epoch)
        self._save()
        report(self._standing(epoch + 1, epoch_ended=True))

    def _take_off_shadows(self) -> None:
        """Take what following other arms took off the costs: training on all data does not need it."""
        if not self.shadows:
            return
        spent = self.train_data.forecast().seconds - self._shadow_seconds
        self._shadow_seconds += spent
        self.costs.seconds -= spent
        self.costs.overhead_seconds -= spent
        if self.costs.cpu_seconds is not None:  # one thread
            self.costs.cpu_seconds -= spent

    def _descend(self, step: Step) -> None:
        step.loss.backward()  # type: ignore[no-untyped-call]
        self.steps.after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _refresh(self) -> None:
        """Forward what the epoch left out, if the rule needs it: three forwards cost one pass."""
        left_out = self.train_data.left_out
        shard = left_out[self.rank :: self.world_size]
        loader = DataLoader(
            Subset(self.train_data, shard.tolist()),
            self.settings.batch_size,
            collate_fn=self.loader.collate_fn,
        )
        self.model.eval()  # not the wrapper of several ranks, whose forwards are collective
        with torch.no_grad():
            results = [
                per_sample(self._losses(self.model, to_device(batch, self.device)))
                for batch in loader
            ]
        self.model.train()
        losses = [result.losses.cpu() for result in results]
        scores = [result.scores.cpu() for result in results]
        nothing = torch.empty(0)
        self.train_data.refresh(
            torch.cat([*losses, nothing]), shard, scores=torch.cat([*scores, nothing])
        )
        self.costs.samples_forwarded += round(len(left_out) * FORWARD)

    def _losses(self, model: nn.Module, batch: Any) -> torch.Tensor | infobatch.PerSample:
        if not self._weighted:
            return self.task.losses(model, batch)
        samples, weights = batch
        return scaled(self.task.losses(model, samples), weights)

    @property
    def ended(self) -> bool:
        """Whether the schedule has ended, which may be within an epoch."""
        return self.position >= self.total_steps - ROUNDING

    def _steps_in_epoch(self) -> int:
        """The optimizer steps of this whole epoch, even if it was resumed."""
        if self.arm.shrink == "batch":
            return self.full_steps
        return steps_per_epoch(len(self.train_data.plan.order), self.batch)

    def _divisor(self, count: int, step: int) -> int:
        """The divisor of the sum of a batch's losses: its size, or its size before shrinking."""
        if self.arm.shrink == "epoch":
            return count
        full = math.ceil(self.num_samples / self.world_size)
        return (step + 1) * full // self.full_steps - step * full // self.full_steps

    def _close_epoch(self, epoch: int) -> None:
        """Evaluate the model if it is due, and add the epoch to the history."""
        self._take_off_shadows()
        last = self.train_data.savings.epochs[-1]
        is_last = epoch + 1 == self.epochs or self.ended
        measured = is_last or (epoch + 1) % self.task.evaluate_every == 0
        # The weights of an epoch sum to the number of samples.
        weight = self.num_samples * last.made / last.planned / self.world_size
        self.history.append(
            {
                "epoch": epoch,
                "metric": self._evaluate() if measured else None,
                "train_loss": finite(rounded(float(self.loss_sum) / weight)),
                **self.steps.savings(self.history),
                "thresholds": [rounded(threshold) for threshold in last.thresholds],
                "learning_rate": rounded(float(self.schedule.get_last_lr()[0])),
                "seconds": rounded(self.costs.seconds),
            }
        )
        self.loss_sum.zero_()

    def _evaluate(self) -> float | None:
        began = self._clock()
        value = self.task.evaluate(self.model.eval(), self.test_set)
        self.costs.evaluation_seconds += self._clock() - began
        try:
            return finite(float(value))
        except (TypeError, ValueError):
            raise TaskError(
                f"{self.task.name}: evaluate() returned {type(value).__name__}, expected a number."
            ) from None

    def _look_at_plan(self, epoch: int) -> None:
        """Count the visits, and keep a snapshot of one pruned epoch for the report."""
        if self.epochs_seen > epoch:  # resumed in the middle of it
            return
        self.epochs_seen = epoch + 1
        plan = self.train_data.plan
        self.steps.begin_epoch()
        if self.arm.prunes and not plan.whole and epoch >= self.epochs // 2 and not self.snapshot:
            self.snapshot = {
                "epoch": torch.tensor(epoch),
                "scores": self.train_data.scores,
                "order": plan.order,
                "weights": plan.weights,
            }

    def _seed_workers(self) -> None:
        """Seed the loader's workers by the current step, so that a resumed run continues.

        At the start of an epoch, the seed is the same as in a run that was never stopped; within an
        epoch it is a new one. Each rank has its own, as in the main process.
        """
        place = (self.settings.seed, self.rank, self.costs.optimizer_steps)
        seed = np.random.SeedSequence(place).generate_state(1, np.uint64)[0]
        self.loader.generator.manual_seed(int(seed))

    def _start_timing(self) -> None:
        self._timing_since = self._clock(), cpu_seconds()

    def _stop_timing(self) -> None:
        clock, computed = self._timing_since
        self.costs.seconds += self._clock() - clock
        if self.costs.cpu_seconds is not None:
            self.costs.cpu_seconds += cpu_seconds() - computed

    def _clock(self) -> float:
        """The time after the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def _overhead(self) -> Iterator[None]:
        """Measure host time: waiting for a GPU at each step would cost more than it measures."""
        began = time.perf_counter()
        yield
        self.costs.overhead_seconds += time.perf_counter() - began

    def _standing(self, epochs_done: int, *, epoch_ended: bool) -> dict[str, Any]:
        return {
            "arm": self.arm.name,
            "seed": self.settings.seed,
            "epoch": epochs_done,
            "epochs": self.epochs,
            "done": min(1.0, self.position / self.total_steps),
            "seconds": self.costs.seconds,
            "last": self.history[-1] if self.history else None,
            "epoch_ended": epoch_ended,  # just now: ``last`` is new
        }

    # Checkpoints.

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def _save(self) -> None:
        self._note_memory()
        data = self.train_data.state_dict()  # collective
        random = random_states(self.device, self.world_size)  # collective, too
        costs = self._costs_of_all_ranks()  # and so is this
        if self.rank:
            return
        state = {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "data": data,
            "random": random,
            "costs": costs,
            "history": self.history,
            "steps": self.steps.state_dict(),
            "epochs_seen": self.epochs_seen,
            "position": self.position,
            "loss_sum": self.loss_sum,
            "snapshot": self.snapshot,
        }
        write_atomically(self._checkpoint, lambda path: torch.save(state, path))

    def _restore(self) -> None:
        if not self._checkpoint.exists():
            return
        state = read_checkpoint(self._checkpoint, self.settings)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.train_data.load_state_dict(state["data"])
        restore_random_states(state["random"], self.rank, self.device)
        self.costs = Costs(**state["costs"])
        if self.rank and self.costs.cpu_seconds is not None:
            self.costs.cpu_seconds = 0.0  # all ranks' time is included in the first rank's
        self.history = state["history"]
        self.steps.load_state_dict(state["steps"])
        self.epochs_seen = state["epochs_seen"]
        self.position = state["position"]
        self.loss_sum = state["loss_sum"].to(self.device)
        self.snapshot = state["snapshot"]

    # Results.

    def _costs_of_all_ranks(self) -> dict[str, Any]:
        """The costs, with the total CPU time of all ranks; collective."""
        costs = asdict(self.costs)
        if self.world_size > 1 and costs["cpu_seconds"] is not None:
            total = torch.tensor(costs["cpu_seconds"], dtype=torch.float64)
            dist.all_reduce(total)
            costs["cpu_seconds"] = float(total)
        return costs

    def _result(self) -> Record:
        full_passes = self.num_all * self.settings.epochs
        self._note_memory()
        return Record(
            arm=self.arm.name,
            length=self.settings.length,
            seed=self.settings.seed,
            settings=asdict(self.settings),
            metric=self.history[-1]["metric"],
            costs=Costs(**self._costs_of_all_ranks()),
            num_samples=self.num_all,
            num_test=len(self.test_set),  # type: ignore[arg-type]
            full_passes=full_passes,
            saved_fraction=1 - self.costs.samples_forwarded / full_passes,
            history=tuple(from_json(Epoch, epoch) for epoch in self.history),
            versions=versions(),
            hardware=hardware(self.device),
            finished_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            extra_metrics=self._extra_metrics(),
            shadows=self._followed(),
        )

    def _followed(self) -> dict[str, tuple[EpochPasses, ...]]:
        """What the shadows recorded, by arm."""
        if not self.shadows:
            return {}
        rules = self.train_data.forecast().rules
        return {arm: rules[name_of(options)].epochs for arm, options in self.shadows.items()}

    def _extra_metrics(self) -> dict[str, float | None]:
        diverged = self.history[-1]["metric"] is None  # its outputs may not be numbers
        if self.task.extra_metrics is None or self.rank or diverged:
            return {}
        metrics = self.task.extra_metrics(self.model.eval(), self.test_set)
        return {name: finite(float(value)) for name, value in metrics.items()}

    def _note_memory(self) -> None:
        known = (self.costs.peak_memory_mb, peak_memory_mb(self.device))
        self.costs.peak_memory_mb = max((peak for peak in known if peak is not None), default=None)

    def details(self) -> dict[str, Any]:
        """The report's per-sample data, which is kept in a separate file."""
        scores = self.train_data.scores.numpy()
        seen = np.flatnonzero(np.isfinite(scores))
        by_score = seen[np.argsort(scores[seen], kind="stable")]
        labels = self.task.labels(self.train_set) if self.task.labels is not None else None
        return {
            "scores": scores,
            "visits": self.steps.visits,
            "easiest": by_score[:12],
            "hardest": by_score[::-1][:12],
            **({} if labels is None else {"labels": np.asarray(labels)}),
            **{f"snapshot_{name}": value.numpy() for name, value in self.snapshot.items()},
        }

    def shown(self, index: int) -> Any:
        """A training sample for the report: a text, an array of pixels, or None."""
        return None if self.task.show is None else self.task.show(self.train_set, index)
