"""The pruner: losses in, plans out. This is the user interface; ``epoch/`` does the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist

from infobatch import checks
from infobatch.checks import Rows, check_count
from infobatch.distributed.ranks import Place, Ranks
from infobatch.epoch.course import Course
from infobatch.epoch.progress import Progress
from infobatch.epoch.refresh import Refreshing
from infobatch.epoch.sampler import PlanBatchSampler, PlanSampler, Shrink
from infobatch.loaders.known import KnownLoaders
from infobatch.memory.export import read_scores, write_scores
from infobatch.memory.state import State
from infobatch.memory.tracks import Track
from infobatch.per_sample import PerSample
from infobatch.plan import Plan
from infobatch.policies.base import Policy
from infobatch.policies.limits import Limits
from infobatch.policies.planning import Planner
from infobatch.policies.resolve import resolve_policy
from infobatch.savings import Savings


class Pruner(Refreshing):
    """Prunes the epochs of a training run over ``num_samples`` samples.

    Give ``sampler`` to a loader, and the per-sample losses of each of its batches to ``update``.
    Scores stay frozen during an epoch; the next epoch's plan is drawn from them when first needed.
    Epochs from ``delta * num_epochs`` on are whole, with weight 1.

    For the arguments see :class:`~infobatch.InfoBatch`; ``cost`` and ``labels`` are arrays here.

    >>> pruner = Pruner(6, num_epochs=2, delta=1.0)
    >>> for epoch in range(2):
    ...     for index in pruner.sampler:
    ...         loss = pruner.update(torch.tensor([float(index)]))
    >>> print(pruner.savings)
    Saved 8.3% of 12 sample passes (11 made in 2 epochs)
    """

    def __init__(
        self,
        num_samples: int,
        num_epochs: int,
        *,
        policy: Policy | str | None = None,
        delta: float | None = None,
        seed: int = 0,
        save: float | None = None,
        cost: Rows | None = None,
        warmup: int = 0,
        max_noise: float | None = None,
        protect_classes: float | None = None,
        labels: Rows | None = None,
        initial_scores: Rows | str | PathLike[str] | None = None,
        tracks: Iterable[Track] = (),
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        sharded: bool = False,
        global_order: bool | None = None,
    ) -> None:
        self._place = Place(rank, world_size, process_group, sharded, global_order)
        self.num_samples = check_count("num_samples", num_samples, "training needs some samples")
        self.num_epochs = checks.check_epochs(num_epochs)
        self.policy = resolve_policy(policy, sharded=sharded)
        self.delta = checks.check_delta(delta, self.policy.default_delta)
        self._sampler = PlanSampler(self)
        self._loaders = KnownLoaders(self._sampler)
        limits = (save, cost, warmup, max_noise, protect_classes, labels)
        seed = check_count("seed", seed, "it seeds the random draws", least=0)
        scores = read_scores(initial_scores, self.num_samples)
        run = (self.num_samples, self.num_epochs, self.policy, self.delta, tuple(tracks), scores)
        planner = Planner(*run, Limits.checked(self.policy, self.num_samples, *limits))
        self._channels = planner.channels
        self._course = Course(planner, seed, self._ranks, self._loaders)
        self._last_losses: torch.Tensor | None = None

    def _ranks(self) -> Ranks:
        return self._place.find(loaders_shard=self._loaders.shard_batches())

    # For the loader.

    @property
    def sampler(self) -> PlanSampler:
        """The sampler for a ``DataLoader``; always the same object."""
        return self._sampler

    def batch_sampler(
        self, batch_size: int, *, drop_last: bool = False, shrink: Shrink = "epoch", even: bool = False
    ) -> PlanBatchSampler:  # fmt: skip
        """A batch sampler for ``DataLoader(…, batch_sampler=…)``, faster than ``sampler``.

        With ``shrink="epoch"`` a pruned epoch has fewer batches. With ``shrink="batch"`` it has as
        many as one over all data, but smaller, so every schedule stays that of full-data training.
        ``even`` makes batch sizes nearly equal: a last batch of two samples would spoil BatchNorm.
        """
        return PlanBatchSampler(self._sampler, batch_size, drop_last, shrink, even)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, counted from 0; needed only if epochs are not iterated in order.

        After a resume, an epoch before the loaded one means that the loader counts from 0 again.
        """
        self._course.set_epoch(check_count("set_epoch(): epoch", epoch, "counted from 0", least=0))

    # For the training loop.

    def update(
        self,
        losses: torch.Tensor | PerSample,
        *,
        scores: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Record a batch's losses and return the mean of weight × loss, for ``backward()``.

        ``losses`` has one entry per sample. ``scores`` ranks the samples if they are not to be
        ranked by loss. ``index`` identifies the samples, if the batch carries it; without it,
        batches must come in the sampler's order, with one update each (or several, for consecutive
        parts of a batch). ``extras`` are further values, by name, that some policies need.
        """
        if self._channels:
            extras = checks.check_extras("update", losses, extras, self._channels, self.policy)
        losses, scores, index = checks.check_batch("update", losses, scores, index)
        run = self._course.run_for("update()", index is not None)
        plain, is_first = losses.detach(), not run.updated
        loss = run.update(losses, plain, scores, index, extras)
        self._last_losses = plain
        if is_first or run.updated >= run.check_at:
            self._course.after_update(run)
        return loss

    def reweight(
        self, losses: torch.Tensor | PerSample, *, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weighted mean for another forward pass of the last updated batch; not recorded.

        For optimizers that evaluate a batch more than once, such as SAM or L-BFGS.
        """
        losses, _, index = checks.check_batch("reweight", losses, None, index)
        return self._course.current_run().reweight(losses, index)

    def skip(self, count: int | None = None, *, index: torch.Tensor | None = None) -> None:
        """Skip the update of a batch (because of a NaN, for instance) and keep its scores.

        Without ``count``, the rest of the current batch is skipped.
        """
        run = self._course.run_for("skip()", index is not None)
        if index is not None:
            run.skip_at(checks.check_index("skip", index))
        else:
            count = run.rest_of_batch() if count is None else count
            run.skip(check_count("skip(): count", count, "it is a number of samples"))
        self._course.after_update(run)

    # For the user.

    @property
    def last_loss(self) -> torch.Tensor:
        """The plain, unweighted mean of the last updated batch's losses, for logging."""
        if self._last_losses is None:
            raise RuntimeError("last_loss is that of the last update(): call update() first.")
        return self._last_losses.mean()

    @property
    def epoch(self) -> int:
        """The running epoch, from 0; after ``load_state_dict``, the one to be continued."""
        return self._course.clock.epoch

    @property
    def seed(self) -> int:
        """The key of the random draws."""
        return self._course.seed

    @property
    def plan(self) -> Plan:
        """This epoch's plan; drawn now if it has not been drawn yet."""
        return self._course.current_run().plan

    @property
    def progress(self) -> Progress:
        """How far the running epoch has come."""
        return self._course.current_run().progress()

    def virtual_step(self, steps_per_epoch: int) -> int:
        """How many steps of full-data training the samples so far stand for.

        For learning rates computed from a step number. ``steps_per_epoch`` is the number of steps
        in an epoch over all data; every epoch, pruned or not, advances by that number.
        """
        return self.progress.full_steps(checks.check_steps("virtual_step()", steps_per_epoch))

    @property
    def scores(self) -> torch.Tensor:
        """A copy of the scores, float32, NaN where never seen, with this rank's latest losses."""
        return torch.from_numpy(self._course.known_memory().scores)

    @property
    def savings(self) -> Savings:
        """Sample passes made and saved so far."""
        return Savings(tuple(self._course.passes()))

    def export_scores(self, path: str | PathLike[str]) -> None:
        """Write the scores to a ``.parquet``, ``.csv`` or ``.npz`` file, for a later run to start from.

        The columns are ``index``, ``score`` and what is tracked, such as ``visits``; with sharded
        scores the rows are this rank's samples.
        """
        write_scores(path, self._course.known_memory(), self._ranks().shard)

    # State.

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """Everything needed to continue from here, bit for bit, in plain tensors and numbers.

        Between epochs, any rank may call it alone. In the middle of an epoch, call it on every
        rank: each gets the whole state, so save one of them. Or call it with ``gather=False`` on
        one rank only: what the others recorded in the running epoch is then missing. With
        ``sharded=True`` the state is this rank's: save and load one per rank.
        """
        return self._course.state(gather=gather).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next iteration of a loader begins where it was saved."""
        self._course.load(State.from_dict(state, self.num_samples, self._ranks()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy like a checkpoint: the copy continues from this point."""
        planner = self._course.planner
        options: dict[str, Any] = {"policy": self.policy, "delta": self.delta, "seed": self.seed}
        options |= {"initial_scores": planner.initial_scores, "tracks": planner.tracks}
        options |= vars(planner.limits) | vars(self._place)
        rebuild = partial(Pruner, self.num_samples, self.num_epochs, **options)
        return rebuild, (), None if self._course.is_fresh else self.state_dict(gather=False)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state)
