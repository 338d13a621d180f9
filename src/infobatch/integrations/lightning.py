"""Lightning: a callback that adapts its Trainer to shorter epochs.

Lightning fixes an epoch's number of batches before training. This number determines when validation
runs, which batch is the last one of an accumulation, the progress bar's total and the position of a
resumed run. The callback sets the right number when each epoch starts. Part of this is private to
Lightning: what is used is listed, and tested, in tests/integrations/test_lightning_interface.py.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from math import ceil, lcm
from typing import Any, cast

from infobatch import Pruner, paced
from infobatch.integrations.versions import require
from infobatch.trainers import Progress, leave_epoch, sampler_of, samples_per_epoch, summary

require("lightning", ">=2.6,<2.7", extra="lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.utilities import rank_zero_info  # noqa: E402
from torch.optim.lr_scheduler import LRScheduler  # noqa: E402

# Lightning cannot know that the sampler continues where it stopped.
_NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class InfoBatchCallback(Callback):
    """Trains with pruned epochs: ``Trainer(callbacks=[InfoBatchCallback(train_data)])``.

    The module returns ``train_data.update(losses)`` from ``training_step`` and the train loader is
    ``DataLoader(train_data, …, sampler=train_data.sampler)``. The callback takes care of the rest: the
    epochs' lengths, validation, per-step schedulers, several processes, checkpoints and logs.

    Args:
        train_data: the pruned data, or its pruner. Without it, it is taken from the train loader, for
            data that a ``LightningDataModule`` builds in ``setup``.

    Raises:
        TypeError: if ``train_data`` is neither.

    Example::

        trainer = Trainer(max_epochs=200, callbacks=[InfoBatchCallback(train_data)])
        trainer.fit(module, DataLoader(train_data, 128, sampler=train_data.sampler))
    """

    def __init__(self, train_data: Pruner | None = None) -> None:
        if train_data is not None and not isinstance(train_data, Pruner):
            raise TypeError(
                f"InfoBatchCallback(train_data) got {type(train_data).__name__}, expected the InfoBatch "
                "or Pruner that the train loader's sampler belongs to."
            )
        self._pruner = train_data
        self._fitting = False
        self._interrupted = False
        self._saved: dict[str, Any] | None = None  # a checkpoint's state that was not yet loaded
        self._next_length: int | None = None  # of the epoch whose first batch comes next
        self._left = 0  # batches that the loader had at the epoch's start, or when it was resumed
        self._made = 0  # batches of the epoch made before it was resumed
        self._validate_after: list[int] = []  # batches of this epoch
        self._filter: Any = None

    # Before training.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the sampler, and run before callbacks that need the length of the epoch."""
        self._fitting, self._interrupted = stage == "fit", False
        self._saved = self._next_length = None
        if not self._fitting:
            return
        settings: Any = trainer  # not all attributes of a Trainer are declared
        if settings.overfit_batches > 0:
            raise ValueError(
                f"InfoBatchCallback got Trainer(overfit_batches={settings.overfit_batches}), which removes "
                "the sampler. Use limit_train_batches, or leave the callback out while overfitting."
            )
        settings.callbacks = [self, *(other for other in settings.callbacks if other is not self)]
        connector = trainer._data_connector
        if "_requires_distributed_sampler" not in vars(connector):
            # Lightning would shard the sampler, which already shards, a second time and pad it with
            # repeats. Validation loaders keep Lightning's sampler.
            requires = connector._requires_distributed_sampler
            vars(connector)["_requires_distributed_sampler"] = lambda loader: (
                sampler_of(loader) is None and requires(loader)
            )
        self._set_full_length_with_data(trainer)

    def _set_full_length_with_data(self, trainer: Trainer) -> None:
        """Let ``Trainer.estimated_stepping_batches`` count full epochs.

        Schedules are built for full epochs, but with ``initial_scores`` the first epoch is pruned.
        """
        loop = trainer.fit_loop
        if "setup_data" in vars(loop):
            return
        setup_data = loop.setup_data

        def then_set_length() -> None:
            known = loop._combined_loader
            setup_data()
            if (
                loop._combined_loader is not known
            ):  # it returns at once if the data is already set up
                loop.max_batches = self._full_length(trainer)

        vars(loop)["setup_data"] = then_set_length

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pace the schedulers that step with the optimizer."""
        per_step = [
            config
            for config in trainer.lr_scheduler_configs
            if config.interval == "step" and isinstance(config.scheduler, LRScheduler)
        ]
        per_step = [config for config in per_step if not config.reduce_on_plateau]
        if not per_step or trainer.limit_train_batches == 0:
            return
        trainer.fit_loop.setup_data()  # as Trainer.estimated_stepping_batches does
        batches = self._full_length(trainer)
        steps = ceil(batches / trainer.accumulate_grad_batches) * (trainer.max_epochs or 0)
        if trainer.max_epochs == -1 or -1 < trainer.max_steps < steps:
            return  # max_steps counts optimizer steps, and so does a schedule built for it
        for config in per_step:
            course = _Course(trainer, config.frequency)
            calls = course.calls(batches)
            if calls:
                config.scheduler = cast(Any, paced(config.scheduler, course, steps_per_epoch=calls))

    # Epochs.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the loader, and continue where a checkpoint was taken."""
        pruner = self._find_pruner(trainer)
        if trainer.max_epochs not in (-1, None, pruner.num_epochs):
            rank_zero_info(
                f"InfoBatchCallback: Trainer(max_epochs={trainer.max_epochs}), but train_data prunes for "
                f"num_epochs={pruner.num_epochs}."
            )
        if self._saved is not None:
            self._resume(trainer, pruner, self._saved)
            self._saved = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set how many batches this epoch has."""
        self._find_pruner(trainer)  # the loader may have been reloaded
        self._left, self._made = len(_train_loader(trainer)), 0
        self._set_length(trainer, _limited(self._left, trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the batch after which validation runs next."""
        if self._next_length is not None:
            self._set_length(trainer, self._next_length)
            self._next_length = None
        self._unfilter()
        self._aim_validation(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what this epoch saved."""
        pruner = self._find_pruner(trainer)
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready - self._made
        if batches < self._left:  # limit_train_batches
            leave_epoch(pruner, batches)
        numbers = pruner.savings.as_dict()
        # Lightning logs an epoch's metrics at the step of its last batch.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
        trainer._logger_connector.log_metrics(
            cast(Any, {**numbers, "epoch": trainer.current_epoch}), step=max(step, 0)
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the full data's number of batches in the trainer."""
        trainer.fit_loop.max_batches = self._full_length(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what was saved, below the progress bar."""
        if self._pruner is None:
            return
        if self._saved is not None:  # a run that was over when it was saved
            self._pruner.load_state_dict(self._saved)
            self._saved = None
        if trainer.is_global_zero:
            print(summary(self._pruner))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Allow for the other ranks being gone from here on."""
        self._interrupted = True
        self._unfilter()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the trainer as it was."""
        vars(trainer._data_connector).pop("_requires_distributed_sampler", None)
        vars(trainer.fit_loop).pop("setup_data", None)
        self._unfilter()

    # Checkpoints. Lightning asks every rank for its state and writes one.

    def state_dict(self) -> dict[str, Any]:
        """The pruner's state."""
        if self._saved is not None or self._pruner is None:
            return self._saved or {}
        return self._pruner.state_dict(gather=not self._interrupted)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts.

        ``Trainer.estimated_stepping_batches`` asks for the loader's length before that, and expects
        that of the full data.
        """
        if self._fitting:
            self._saved = state_dict

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Drop the position that a stateful loader has saved: it is in the pruner's state."""
        if self._fitting and self.state_key in checkpoint.get("callbacks", {}):
            loop = checkpoint.get("loops", {}).get("fit_loop", {})
            loop.get("state_dict", {}).pop("combined_loader", None)

    def _resume(self, trainer: Trainer, pruner: Pruner, state: dict[str, Any]) -> None:
        """Make Lightning's counters and the pruner agree on where the run is."""
        loop: Any = trainer.fit_loop
        epochs, batches = loop.epoch_progress, loop.epoch_loop.batch_progress
        if loop.restarted_on_epoch_end:
            # With max_steps, Lightning makes an empty pass and then counts the epoch a second time.
            epochs.current.processed -= 1
            epochs.total.processed -= 1
        pruner.load_state_dict(state)
        pruner.set_epoch(epochs.current.processed)
        loader = _train_loader(trainer)
        self._left = left = len(loader)  # 0 if the epoch had come to its end
        self._made = 0
        # The existing iterator was created before the state was loaded.
        fetcher = loop._data_fetcher
        iter(fetcher)
        if not loop.restarting:
            fetcher.length = _limited(left, trainer)
            return
        made = batches.current.completed + loop.epoch_loop.restarted_on_train_batch_end
        if made and left and not pruner.progress.done:
            # Saved at the last batch of an epoch. Lightning resets its counters if it finds that
            # all batches of the epoch were made, and then begins the next epoch.
            self._set_length(trainer, made)
            self._next_length = fetcher.length = _limited(left, trainer)
        else:
            self._made = made
            self._set_length(trainer, _limited(made + left, trainer))
            fetcher.length = int(loop.max_batches)
        fetcher.done = False
        self._aim_validation(trainer, made)
        warnings.filterwarnings("ignore", message=_NOT_RESUMABLE)
        self._filter = warnings.filters[0]

    def _unfilter(self) -> None:
        if self._filter in warnings.filters:
            cast(list[Any], warnings.filters).remove(self._filter)
        self._filter = None

    # Lengths.

    def _find_pruner(self, trainer: Trainer) -> Pruner:
        """Return the train loader's pruner, or raise an error that says what is wrong with it."""
        loader = _train_loader(trainer)
        sampler = sampler_of(loader)
        pruner = None if sampler is None else sampler.pruner
        if not isinstance(pruner, Pruner):
            kind = type(getattr(loader, "sampler", loader)).__name__
            raise TypeError(
                f"InfoBatchCallback found a train loader with {kind}, expected the pruner's sampler. "
                "Build it with DataLoader(train_data, …, sampler=train_data.sampler)."
            )
        if self._pruner is None:
            self._pruner = pruner
        if pruner is not self._pruner:
            raise ValueError(
                "InfoBatchCallback found a train loader with the sampler of a different InfoBatch than its "
                "own, which would begin without scores. Build the InfoBatch once, not with every "
                "loader, and pass that one to InfoBatchCallback(train_data)."
            )
        return pruner

    def _full_length(self, trainer: Trainer) -> int:
        """The batches of a whole epoch on this rank."""
        pruner, loader = self._find_pruner(trainer), _train_loader(trainer)
        samples = samples_per_epoch(pruner)
        batches = getattr(loader, "batch_sampler", None)
        if batches is None:
            return _limited(samples, trainer)
        whole, rest = divmod(samples, getattr(batches, "full_batch_size", batches.batch_size))
        return _limited(whole + (rest > 0 and not batches.drop_last), trainer)

    def _set_length(self, trainer: Trainer, batches: int) -> None:
        loop = trainer.fit_loop
        assert loop._combined_loader is not None
        loop._combined_loader.limits = [batches]
        loop.max_batches = batches
        self._validate_after = self._validation_points(trainer, batches)
        self._aim_validation(trainer, 1)

    def _validation_points(self, trainer: Trainer, batches: int) -> list[int]:
        """The batches of this epoch after which validation runs; none if epochs do not matter."""
        interval = trainer.val_check_interval
        if trainer.check_val_every_n_epoch is None or trainer.val_check_batch is None:
            return []
        if isinstance(interval, float):  # shares of the epoch
            count = int(1 / interval + 1e-9)
            return sorted({max(1, int(batches * k * interval + 1e-9)) for k in range(1, count + 1)})
        points = list(range(interval, batches + 1, interval))
        if not points or (self._full_length(trainer) % interval == 0 and points[-1] != batches):
            points.append(batches)  # a whole epoch ends with a validation, so this one should too
        return points

    def _aim_validation(self, trainer: Trainer, batch: int) -> None:
        """Set ``val_check_batch``, whose multiples trigger validation, to the next point."""
        if self._validate_after:
            place = bisect_left(self._validate_after, batch)
            over = place == len(self._validate_after)
            trainer.val_check_batch = batch + 1 if over else self._validate_after[place]


class _Course:
    """The progress of training for :func:`infobatch.paced`, in batches as the trainer counts."""

    def __init__(self, trainer: Trainer, frequency: int) -> None:
        self._trainer = trainer
        self._frequency = frequency

    @property
    def num_epochs(self) -> int:
        return self._trainer.max_epochs or 0

    @property
    def progress(self) -> Progress:
        loop: Any = self._trainer.fit_loop
        done, total = loop.epoch_loop.batch_progress.current.ready, int(loop.max_batches)
        epoch = loop.epoch_progress.current.processed
        total = max(self._last_call(total), 1)
        return Progress(epoch, done, total, full=total)

    def _last_call(self, batches: int) -> int:
        """The last batch of an epoch after which Lightning steps the scheduler."""
        if batches % self._frequency == 0:
            return batches
        return batches - batches % lcm(self._frequency, self._trainer.accumulate_grad_batches)

    def calls(self, batches: int) -> int:
        """How often Lightning steps the scheduler in an epoch."""
        accumulate = self._trainer.accumulate_grad_batches
        rest = batches % self._frequency == 0 and batches % accumulate != 0
        return batches // lcm(self._frequency, accumulate) + rest


def _train_loader(trainer: Trainer) -> Any:
    combined = trainer.fit_loop._combined_loader
    loaders = [] if combined is None else combined.flattened
    if len(loaders) != 1:
        raise ValueError(
            f"InfoBatchCallback found {len(loaders)} train loaders, expected one: each batch of it gets "
            "one update. Read the other data in the data set of the first, or in training_step."
        )
    return loaders[0]


def _limited(batches: int, trainer: Trainer) -> int:
    """The batches that ``limit_train_batches`` leaves; at least one, if there are any."""
    limit = trainer.limit_train_batches
    if isinstance(limit, int):
        return min(batches, limit)
    return max(int(batches * limit), min(batches, 1))
