"""Hooks into the Trainer: the index in batches, epoch lengths, scores in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainerCallback
from transformers.optimization import GreedyLR

from infobatch.batch import Indexed
from infobatch.integrations.transformers import checkpoint
from infobatch.integrations.transformers.config import InfoBatchConfig
from infobatch.integrations.transformers.loading import CarryIndex, EpochSampler
from infobatch.integrations.transformers.pace import Course, EpochUnderWay, VirtualSteps
from infobatch.integrations.transformers.steps import WeightedSteps
from infobatch.integrations.transformers.support import (
    check_arguments,
    check_dataset,
    check_interface,
)
from infobatch.pruner import Pruner

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class PrunedEpochs(_Base):
    """The part of a mixin that has the ``pruner``; the other part updates it with batches."""

    data_collator: Any
    _under_way: EpochUnderWay | None = None

    def __init__(self, *args: Any, infobatch: InfoBatchConfig | None = None, **kwargs: Any) -> None:
        if infobatch is not None and not isinstance(infobatch, InfoBatchConfig):
            raise TypeError(
                f"{type(self).__name__}(infobatch=…) got {type(infobatch).__name__}, expected an "
                "InfoBatchConfig or None."
            )
        self.infobatch = infobatch or InfoBatchConfig()
        self._pruner: Pruner | None = None
        self._forget_batches()
        self._epoch_sampler = EpochSampler(lambda: self.pruner)
        self._course: Course | None = None
        given = kwargs.get("args", args[1] if len(args) > 1 else None)
        if given is not None:
            check_arguments(given)  # before a data set is prepared in vain
        super().__init__(*args, **kwargs)
        check_arguments(self.args)
        if self.train_dataset is not None:
            check_dataset(self.train_dataset)
        self.add_callback(_EpochEnd(self._end_epoch))

    @property
    def pruner(self) -> Pruner:
        """The pruner of the current training run, or of the next one."""
        if self.train_dataset is None:
            raise RuntimeError(
                f"{type(self).__name__}.pruner has no data to prune: train_dataset is None. Pass "
                "train_dataset=… to the constructor."
            )
        pruner = self._pruner
        if pruner is None or (
            pruner._course.is_fresh and pruner.num_samples != len(self.train_dataset)
        ):
            pruner = self._new_pruner(self._expected_epochs())
        return pruner

    def _forget_batches(self) -> None:
        """Forget what earlier batches have shown, because a new training run begins."""

    def _new_pruner(self, num_epochs: int) -> Pruner:
        check_dataset(self.train_dataset)
        config = self._pruning()
        self._pruner = config.pruner_for(len(self.train_dataset), num_epochs)
        return self._pruner

    def _pruning(self) -> InfoBatchConfig:
        """The user's settings, completed if the default is another rule than the mean."""
        return self.infobatch

    def _expected_epochs(self) -> int:
        """The number of epochs, as the Trainer will compute it when training begins."""
        args = self.args
        if args.max_steps <= 0:
            return max(math.ceil(float(args.num_train_epochs)), 1)
        batches = self._batches_of_all_data()
        steps_per_epoch: int = max(math.ceil(batches / args.gradient_accumulation_steps), 1)
        return -(-int(args.max_steps) // steps_per_epoch)

    def _batches_of_all_data(self) -> int:
        """The batches of a whole epoch on one rank."""
        rounded = math.floor if self.args.dataloader_drop_last else math.ceil
        batches: int = rounded(len(self.train_dataset) / self._train_batch_size)
        return int(rounded(batches / self.args.world_size))

    # The loader: the pruner's order, and the index in each batch.

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self._epoch_sampler

    def _carry_index(self, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """A collate function for pairs of index and sample that puts the indices into the batch."""
        return CarryIndex(collate)

    def _get_dataloader(  # noqa: PLR0917 - the Trainer's signature
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Any = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        options = (batch_size, sampler_fn, is_training, dataloader_key)
        if not is_training:
            return super()._get_dataloader(dataset, description, *options)
        check_dataset(dataset)
        # Columns that the model does not take are removed first, as usual, and the index is added
        # afterwards. The Trainer's own remover, applied again, ignores pairs of index and sample.
        collate = self.data_collator
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collate = self._get_collator_with_removed_columns(collate, description=description)
        collator, self.data_collator = self.data_collator, self._carry_index(collate)
        try:
            return super()._get_dataloader(Indexed(dataset), description, *options)
        finally:
            self.data_collator = collator

    # The run: its length, its schedule, its epochs.

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """The Trainer's values for full data, and a new pruner for the same number of epochs."""
        self._epoch_sampler.of_all_data = True
        try:
            values = super().set_initial_training_values(args, dataloader)
        finally:
            self._epoch_sampler.of_all_data = False
        num_train_epochs, steps_per_epoch, *_, max_steps = values
        self._course = Course(steps_per_epoch, max_steps)
        self._forget_batches()
        self._under_way = None
        pruner = self.pruner
        if not pruner._course.is_fresh or pruner.num_epochs != num_train_epochs:
            self._new_pruner(max(num_train_epochs, 1))
        return values

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The Trainer's or the user's scheduler in full-data steps, paced to pruned epochs."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if isinstance(scheduler, ReduceLROnPlateau | GreedyLR):  # stepped by evaluations
            return scheduler
        if isinstance(scheduler, VirtualSteps):  # the user's, continued in a second train()
            scheduler = scheduler.scheduler
        self.lr_scheduler = VirtualSteps(scheduler, self._steps_due)
        return self.lr_scheduler

    def _steps_due(self) -> int:
        """The full-data steps due, including the optimizer step that was just made."""
        assert self._under_way is not None
        assert self._course is not None
        return self._course.due(self._under_way)

    def _run_epoch(  # noqa: PLR0917 - the Trainer's signature
        self,
        model: Any,
        epoch: int,
        train_dataloader: Any,
        steps_in_epoch: int,
        num_update_steps_per_epoch: int,
        trial: Any,
        ignore_keys_for_eval: Any,
        start_time: Any,
        resume_from_checkpoint: Any,
        epochs_trained: int,
        steps_trained_in_current_epoch: int,
    ) -> None:
        resumed = epoch == epochs_trained and resume_from_checkpoint is not None
        done = steps_trained_in_current_epoch if resumed else 0
        self.pruner.set_epoch(epoch)
        self._epoch_sampler.resumed = done > 0
        batches = len(train_dataloader)  # of this epoch: a pruned one has fewer
        at_once: int = getattr(train_dataloader, "total_batch_size", None) or self._train_batch_size
        samples = self._samples_in(batches * at_once)
        self._under_way = EpochUnderWay(epoch, samples, batches, done, at_once)
        group = self.args.gradient_accumulation_steps
        steps = math.ceil(batches / group)
        first_step = self.state.global_step - done // group
        assert self._course is not None
        self.state.max_steps = first_step + self._course.steps_to_come(self.pruner, epoch, steps)
        for callback in self.callback_handler.callbacks:
            bar = getattr(callback, "training_bar", None)
            if bar is not None:
                bar.total = self.state.max_steps
                bar.refresh()
        super()._run_epoch(
            model=model,
            epoch=epoch,
            train_dataloader=train_dataloader,
            steps_in_epoch=batches,
            num_update_steps_per_epoch=steps,
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
            start_time=start_time,
            resume_from_checkpoint=resume_from_checkpoint,
            epochs_trained=epochs_trained,
            steps_trained_in_current_epoch=steps_trained_in_current_epoch,
        )

    def _samples_in(self, rows: int) -> int:
        """How many samples of the epoch its batches contain, without repeats for padding."""
        return min(rows, len(self.pruner.plan))

    def _end_epoch(self) -> None:
        """Close the epoch and log, before the Trainer evaluates and saves."""
        now = self._under_way
        if now is not None and now.over:  # one that was left early may be resumed
            self._close(now)

    def _close(self, now: EpochUnderWay) -> None:
        self.pruner.set_epoch(now.epoch + 1)
        self._under_way = None
        loss_is_due = self.control.should_log
        self.log(dict(self.pruner.savings.as_dict()))
        self.control.should_log = loss_is_due  # logging resets it

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: Any) -> Any:
        if self._under_way is not None:
            self._close(self._under_way)
        savings = self.pruner.savings
        output = super()._finalize_training(trial, savings.made, start_time)
        if self.is_world_process_zero():
            print(savings)
        return output

    # Checkpoints.

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        now = self._under_way
        place = (self.pruner.epoch, 0) if now is None else (now.epoch, now.batches_done)
        if now is not None and now.over:
            place = (now.epoch + 1, 0)
        state = self.pruner.state_dict()  # every rank takes part
        if self.args.should_save:
            checkpoint.write(output_dir, {"pruner": state, "epoch": place[0], "batches": place[1]})

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        begin: tuple[int, int] = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is None:
            return begin
        saved = checkpoint.read(resume_from_checkpoint)
        self.pruner.load_state_dict(saved["pruner"])
        if saved["epoch"] >= num_train_epochs:  # nothing is left to do
            self.state.max_steps = self.state.global_step
        return saved["epoch"], saved["batches"]


class _EpochEnd(TrainerCallback):
    """Calls back when an epoch is over."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._then()


class InfoBatchMixin(WeightedSteps, PrunedEpochs):
    """Put this before a Trainer class: ``class MyTrainer(InfoBatchMixin, SFTTrainer): ...``.

    The constructor takes one more argument, ``infobatch=InfoBatchConfig(…)``. ``pruner`` is the
    :class:`~infobatch.Pruner`; each ``train()`` starts with a new one, or with a checkpoint's.
    """


class InfoBatchTrainer(InfoBatchMixin, Trainer):
    """Hugging Face's ``Trainer`` with pruned epochs.

    ``InfoBatchTrainer(model=…, args=…, train_dataset=…, infobatch=InfoBatchConfig(…))``; everything
    else is the Trainer's. See :class:`InfoBatchMixin` for use with another Trainer class.
    """


check_interface(Trainer, InfoBatchMixin)
