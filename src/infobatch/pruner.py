"""The pruner: losses in, plans out. This is the user interface; ``epoch/`` does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable, but imports Dynamo when called

from infobatch import checks
from infobatch.checks import check_count
from infobatch.distributed.ranks import Place, Ranks
from infobatch.epoch.course import Course
from infobatch.epoch.progress import Progress
from infobatch.epoch.refresh import refresh_scores, samples_left_out
from infobatch.epoch.sampler import PlanBatchSampler, PlanSampler, Shrink
from infobatch.forecast import Forecast
from infobatch.forecast.shadow import forecast_of
from infobatch.loaders.known import KnownLoaders
from infobatch.memory.export import write_scores
from infobatch.memory.state import State
from infobatch.per_sample import PerSample
from infobatch.plan import Plan
from infobatch.policies.base import Policy
from infobatch.policies.options import Arguments, Options
from infobatch.policies.planning import Planner
from infobatch.policies.resolve import resolve_policy
from infobatch.savings import Savings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Pruner:
    """Prunes the epochs of a training run over ``num_samples`` samples.

    Give ``sampler`` to a loader, and the per-sample losses of each of its batches to ``update``.
    Scores stay frozen during an epoch; the next epoch's plan is drawn from them when first needed.
    Epochs from ``delta * num_epochs`` on are whole, with weight 1.

    Args:
        num_samples: the number of samples in the data.
        num_epochs: how many epochs training takes in total.
        prune_ratio, delta: see :class:`infobatch.Options`.
        options: all others of these options, by name (``cost`` is an array here), and ``rank``,
            ``world_size``, ``process_group``, ``model_group``, ``sharded``, ``global_order`` and
            ``meeting_timeout`` as described below.

    The arguments about ranks:

    * ``rank``, ``world_size``, ``process_group``: which rank of a distributed job this process is; by default
      those of torch.distributed, if it is initialised when the first epoch begins;
    * ``model_group``: the process group of the ranks that share this one's batches, under tensor, pipeline
      or context parallelism; ``process_group`` is then the one over which the data is parallel;
    * ``sharded``: each rank keeps only the scores of a fixed shard of the samples;
    * ``global_order``: the loader shards the batches among the ranks itself, so that the sampler of
      each rank issues all samples; by default the loader in use decides;
    * ``meeting_timeout``: how many seconds a rank waits for the others in a call that all of them have to
      make, such as ``state_dict()`` in the middle of an epoch, before it raises an error; 30 by default.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

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
        prune_ratio: float | None = None,
        delta: float | None = None,
        **options: Unpack[Arguments],
    ) -> None:
        place, pruning = split_arguments(options)
        self._start(
            num_samples, num_epochs, Options(prune_ratio=prune_ratio, delta=delta, **pruning), place
        )

    def _start(self, num_samples: int, num_epochs: int, options: Options, place: Place) -> None:
        """Set up everything that a training run needs."""
        num_samples = check_count("num_samples", num_samples, "training needs some samples")
        num_epochs = checks.check_epochs(num_epochs)
        for rule in (options, *options.shadows.values()):
            resolve_policy(rule.rule, sharded=place.sharded)  # raises if it cannot be sharded
        planner = Planner.of(num_samples, num_epochs, options)
        self._place = place
        self._sampler = PlanSampler(self)
        self._loaders = KnownLoaders(self._sampler)
        self._channels = planner.channels
        self._course = Course(planner, options.seed, self._ranks, self._loaders)
        self._last_losses: torch.Tensor | None = None

    def _ranks(self) -> Ranks:
        return self._place.find(loaders_shard=self._loaders.shard_batches())

    # For the loader.

    @property
    def sampler(self) -> PlanSampler:
        """The sampler for a ``DataLoader``; always the same object."""
        return self._sampler

    def batch_sampler(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        shrink: Shrink = "epoch",
        even: bool = False,
        pad: bool = False,
    ) -> PlanBatchSampler:
        """Return a batch sampler for ``DataLoader(…, batch_sampler=…)``, faster than ``sampler``.

        Args:
            batch_size: the number of samples in a batch.
            drop_last: whether to drop the last batch if it is smaller.
            shrink: with ``"epoch"`` a pruned epoch has fewer batches; with ``"batch"`` it has as many
                as one over all data, but smaller, so every schedule stays that of full-data
                training.
            even: make batch sizes nearly equal: a last batch of two samples would spoil BatchNorm.
            pad: fill up the last batch with repeats of weight 0, so that every batch of every epoch has
                ``batch_size`` samples: one shape to compile or capture. Not with ``index=``.

        Returns:
            The batch sampler; it belongs to this pruner, like :attr:`sampler`.

        Raises:
            ValueError: if ``batch_size`` is below 1, or if the options contradict each other.
        """
        return PlanBatchSampler(
            self._sampler, batch_size, drop_last=drop_last, shrink=shrink, even=even, pad=pad
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; needed only if epochs are not iterated in order.

        Args:
            epoch: its number, counted from 0. After a resume, an epoch before the loaded one means that
                the loader counts from 0 again.

        Raises:
            ValueError: if ``epoch`` is negative.
        """
        self._course.set_epoch(check_count("set_epoch(): epoch", epoch, "counted from 0", least=0))

    # For the training loop.

    @_disable_dynamo
    def update(
        self,
        losses: torch.Tensor | PerSample,
        scores: torch.Tensor | None = None,
        *,
        index: torch.Tensor | None = None,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Record a batch's losses and return the mean of weight × loss, for ``backward()``.

        Args:
            losses: one loss per sample, a 1-D tensor of any float type on any device, or a
                :class:`~infobatch.PerSample`. It is not changed.
            scores: what to rank the samples by, if not their losses.
            index: the samples, if the batch carries them. Without it, batches must come in the
                sampler's order, with one update each (or several, for consecutive parts of a batch).
            extras: further values, by name, that some policies need; one per sample.

        Returns:
            A scalar with gradient, in the losses' dtype.

        Raises:
            RuntimeError: if the losses cannot be matched to samples.
            IndexError: if ``index`` has samples that this epoch leaves out.
            TypeError, ValueError: if there is not one loss per sample.
        """
        extras_by_channel = self._extras("update", losses, extras) if self._channels else ()
        samples = checks.check_counts("update", losses)
        losses, scores, index = checks.check_batch("update", losses, scores, index)
        run = self._course.run_for("update()", index is not None)
        plain, by_loss = losses.detach(), scores is None
        reported = (plain if scores is None else scores.detach(), *extras_by_channel)
        loss = run.update(losses, reported, index, by_loss=by_loss, samples=samples)
        self._last_losses = plain
        if run.updated >= run.check_at:
            self._course.after_update(run)
        return loss

    @_disable_dynamo
    def batch_weights(
        self,
        *,
        index: torch.Tensor | None = None,
        device: torch.device | str | int | None = None,
    ) -> torch.Tensor:
        """Return the weights of the next batch, for a training step that is a pure function.

        Such a step gets the weights and returns the losses, so that all of it can be compiled or
        captured in a CUDA graph. Call :meth:`record` with its losses afterwards::

            loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(128, pad=True))
            for x, y in loader:
                losses = step(x, y, train_data.batch_weights(device=x.device))
                train_data.record(losses)

        Args:
            index: the samples, if the batch carries them.
            device: where the weights are needed; by default on the device of ``index``, or torch's
                default device.

        Returns:
            One weight per sample, float32: ``(weights * losses).mean()`` is what :meth:`update` would
            return. For a :class:`~infobatch.PerSample` with ``counts``, as the functions of
            ``infobatch.scoring`` return where a loss is divided by tokens, pixels or target scores, that
            is ``(weights * samples.rescaled(weights)).mean()``.

        Raises:
            RuntimeError: if no batch is waiting for its losses, or its size cannot be known.
            IndexError: if ``index`` has samples that this epoch leaves out.
        """
        if index is not None:
            index = checks.check_index("batch_weights", index)
            device = index.device if device is None else device
        where = torch.get_default_device() if device is None else torch.device(device)
        if where.index is None and where.type != "cpu":  # "cuda" is not yet one of the GPUs
            where = torch.empty(0, device=where).device
        run = self._course.run_for("batch_weights()", index is not None)
        return run.batch_weights(index, where)

    @_disable_dynamo
    def record(
        self,
        losses: torch.Tensor | PerSample,
        scores: torch.Tensor | None = None,
        *,
        index: torch.Tensor | None = None,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Record a batch's losses, after a step that got its weights from :meth:`batch_weights`.

        The losses are copied, so they may be the output of a CUDA graph that is replayed.

        Args:
            losses: one loss per sample, as for :meth:`update`.
            scores: what to rank the samples by, if not their losses.
            index: the samples, if the batch carries them.
            extras: further values, by name, that some policies need; one per sample.

        Raises:
            RuntimeError, IndexError, TypeError, ValueError: as :meth:`update` does.
        """
        extras_by_channel = self._extras("record", losses, extras) if self._channels else ()
        losses, scores, index = checks.check_batch("record", losses, scores, index)
        run = self._course.run_for("record()", index is not None)
        plain = losses.detach()
        run.record((plain if scores is None else scores.detach(), *extras_by_channel), index)
        self._last_losses = plain
        self._course.after_update(run)

    def _extras(
        self,
        call: str,
        losses: torch.Tensor | PerSample,
        extras: Mapping[str, torch.Tensor] | None,
    ) -> Sequence[torch.Tensor | None]:
        """What a batch reports besides its scores, as far as the policy needs it."""
        return checks.check_extras(call, losses, extras, self._channels, self.policy)

    def reweight(
        self, losses: torch.Tensor | PerSample, *, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the weighted mean for another forward pass of the last batch; not recorded.

        For optimizers that evaluate a batch more than once, such as SAM or L-BFGS.

        Args:
            losses: one loss per sample of the batch that was updated last.
            index: its samples, if the batch carries them.

        Returns:
            A scalar with gradient, in the losses' dtype.

        Raises:
            RuntimeError: if there are not as many losses as in the last ``update`` of this epoch.
        """
        samples = checks.check_counts("reweight", losses)
        losses, _, index = checks.check_batch("reweight", losses, None, index)
        return self._course.current_run().reweight(losses, index, samples)

    def skip(self, count: int | None = None, *, index: torch.Tensor | None = None) -> None:
        """Skip the update of a batch (because of a NaN, for instance) and keep its scores.

        Args:
            count: how many samples to skip; by default the rest of the current batch.
            index: the samples, if the batch carries them.

        Raises:
            RuntimeError: if no batch waits for its update, its size cannot be known, or fewer samples wait
                than are to be skipped.
            IndexError: if ``index`` has samples that this epoch leaves out.
            TypeError, ValueError: if ``count`` or ``index`` is not what is described above.
        """
        run = self._course.run_for("skip()", index is not None)
        if index is not None:
            run.skip_at(checks.check_index("skip", index))
        elif count is None:
            run.skip(None)
        else:
            run.skip(check_count("skip(): count", count, "it is a number of samples"))
        self._course.after_update(run)

    # Between epochs.

    @property
    def left_out(self) -> torch.Tensor:
        """The samples left out by the running epoch, or by the one that has just ended, int64.

        With ``sharded=True``, only this rank's samples. After the epoch's end, samples that have
        been refreshed are no longer included.

        Raises:
            RuntimeError: if the epoch has not begun, so that its plan is not drawn yet.
        """
        return samples_left_out(self._course)

    def refresh(
        self,
        losses: torch.Tensor | PerSample,
        index: torch.Tensor,
        *,
        scores: torch.Tensor | None = None,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Record the losses of samples that the epoch left out, computed without gradients.

        For rules that forward what they hide, such as KAKURENBO. Call it after the epoch's last
        ``update`` and before the next epoch begins; also before saving a checkpoint, because a
        resumed run no longer knows what was left out. With several ranks it is collective: call it
        once per epoch and rank, with all samples that the rank refreshes. Each counts as a third of
        a pass in :attr:`savings`.

        Args:
            losses: one loss per sample.
            index: the samples, from :attr:`left_out`.
            scores: what to rank the samples by, if not their losses.
            extras: further values, by name, that some policies need; one per sample.

        Raises:
            RuntimeError: if the epoch has not ended, or with a ``model_group``.
            TypeError, ValueError: if there is not one loss per sample, or if ``index`` has samples that
                the epoch did not leave out.
        """
        refresh_scores(self._course, losses, index, scores, extras)

    # For the user.

    @property
    def num_samples(self) -> int:
        """The number of samples in the data."""
        return self._course.planner.num_samples

    @property
    def num_epochs(self) -> int:
        """How many epochs training takes in total."""
        return self._course.planner.num_epochs

    @property
    def policy(self) -> Policy:
        """The rule by which samples are left out."""
        return self._course.planner.policy

    @property
    def delta(self) -> float:
        """The share of the epochs that are pruned."""
        return self._course.planner.delta

    @property
    def seed(self) -> int:
        """The key of the random draws."""
        return self._course.seed

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
    def plan(self) -> Plan:
        """This epoch's plan; drawn now if it has not been drawn yet.

        With ``sharded=True`` a plan is drawn together: read it on all ranks, or on none.
        """
        return self._course.current_run().plan

    @property
    def progress(self) -> Progress:
        """How far the running epoch has come; as long as its plan is not drawn, its total is that of all data."""
        return self._course.progress()

    def virtual_step(self, steps_per_epoch: int) -> int:
        """How many steps of full-data training the samples so far stand for.

        For learning rates computed from a step number.

        Args:
            steps_per_epoch: the number of steps in an epoch over all data; every epoch, pruned or not,
                advances by that number.

        Returns:
            The number of steps since the start of the training.

        Raises:
            ValueError: if ``steps_per_epoch`` is not a positive integer.
        """
        return self.progress.full_steps(checks.check_steps("virtual_step()", steps_per_epoch))

    @property
    def scores(self) -> torch.Tensor:
        """A copy of the scores, float32, NaN where never seen, with this rank's latest losses."""
        return torch.from_numpy(self._course.known_memory().scores)

    @scores.setter
    def scores(self, scores: object) -> None:
        name = type(self).__name__
        raise AttributeError(
            f"{name}.scores cannot be set: it is a copy of what training has recorded. Pass "
            f"{name}(…, initial_scores=…) to start from known scores, or update(losses, scores=…) "
            "to rank by something other than the loss."
        )

    @property
    def savings(self) -> Savings:
        """Sample passes made and saved so far."""
        shadows = self._course.shadows
        return Savings(tuple(self._course.passes()), self.forecast().as_dict() if shadows else {})

    def forecast(self) -> Forecast:
        """Forecast what pruning saves at equal quality, from the epochs so far.

        For the rules of ``shadow=``, which are followed during a training on all data; in a pruned run,
        for the rule that prunes it.

        Returns:
            The forecast. Print it: a small table and one sentence, about what to use and how sure that is.

        Raises:
            RuntimeError: if nothing is pruned and no rule is followed.

        >>> pruner = Pruner(1000, num_epochs=8, policy="none", shadow=("auto", "mean"))
        >>> losses = torch.linspace(0, 1, 1000) ** 4
        >>> for epoch in range(8):
        ...     loss = pruner.update(losses[list(pruner.sampler)])
        >>> print(pruner.forecast())
        rule  left out  promised noise  realised noise  saving
        auto     48.2%            0.20            0.20     40%
        mean     25.1%            0.04            0.04     23%
        Use policy="auto": it would save about 40% of the sample passes at equal quality
        (± 10 points, more likely less than more).
        """
        course = self._course
        return forecast_of(course.planner, course.history, course.shadows, self.epoch)

    def export_scores(self, path: str | PathLike[str]) -> None:
        """Write the scores to a ``.parquet``, ``.csv`` or ``.npz`` file, for a later run to start from.

        The columns are ``index``, ``score`` and what is tracked, such as ``visits``; with sharded
        scores the rows are this rank's samples.

        Args:
            path: the file to write; its ending decides the format.

        Raises:
            ValueError: if the file has another ending.
        """
        write_scores(path, self._course.known_memory(), self._ranks().shard)

    # State.

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """Return everything needed to continue from here, bit for bit, in plain tensors and numbers.

        Between epochs, any rank may call it alone. In the middle of an epoch, call it on every
        rank: each gets the whole state, so save one of them.

        Args:
            gather: with False, one rank alone may call it in the middle of an epoch; what the others
                recorded in that epoch is then missing.

        Returns:
            The state; ``torch.load(weights_only=True)`` loads it. With ``sharded=True`` it is this
            rank's: save and load one per rank.

        Raises:
            RuntimeError: in the middle of an epoch, if another rank does not call it in time
                (``meeting_timeout``), or if the ranks have drawn different plans.
        """
        return self._course.state(gather=gather).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next iteration of a loader begins where it was saved.

        Args:
            state: what :meth:`state_dict` returned, with any number of ranks.

        Raises:
            TypeError, ValueError: if it is not such a state, or not one of this number of samples.
        """
        self._course.load(State.from_dict(state, self.num_samples, self._ranks()))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy like a checkpoint: the copy continues from this point."""
        planner = self._course.planner
        arrays = {name: getattr(planner, name) for name in ("cost", "labels", "initial_scores")}
        options = replace(planner.options, **arrays)
        return {
            "attributes": self._subclass_attributes(),
            "start": (planner.num_samples, planner.num_epochs, options, self._place),
            "checkpoint": None if self._course.is_fresh else self.state_dict(gather=False),
        }

    def _subclass_attributes(self) -> dict[str, Any]:
        """The attributes of a subclass."""
        return {name: value for name, value in vars(self).items() if name not in _PARTS}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state["attributes"])
        self._start(*state["start"])
        if state["checkpoint"] is not None:
            self.load_state_dict(state["checkpoint"])


# What _start() sets; a subclass may have more.
_PARTS = {"_place", "_sampler", "_loaders", "_channels", "_course", "_last_losses"}


def split_arguments(arguments: Arguments) -> tuple[Place, dict[str, Any]]:
    """Separate the arguments about ranks from those about pruning."""
    names = {place.name for place in fields(Place)}
    place = Place(**{name: value for name, value in arguments.items() if name in names})  # type: ignore[arg-type]
    return place, {name: value for name, value in arguments.items() if name not in names}
