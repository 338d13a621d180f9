"""Hooks into the Trainer: the index in batches, epoch lengths, scores in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainerCallback
from transformers.optimization import GreedyLR

from infobatch import Indexed, PacedScheduler, Pruner
from infobatch.integrations.transformers.checkpoint import Checkpoint
from infobatch.integrations.transformers.config import InfoBatchConfig
from infobatch.integrations.transformers.loading import CarryIndex, EpochSampler
from infobatch.integrations.transformers.pace import EpochUnderWay, RunLength, RunPace
from infobatch.integrations.transformers.steps import WeightedSteps
from infobatch.integrations.transformers.support import (
    check_arguments,
    check_dataset,
    check_interface,
)
from infobatch.trainers import has_begun, may_prune, summary

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class PrunedEpochs(_Base):
    """The part of a mixin that has the ``pruner``; the other part updates it with batches."""

    data_collator: Any
    lr_scheduler: Any
    _under_way: EpochUnderWay | None = None
    _length: RunLength | None = None
    _whole_steps = 0  # the optimizer steps of an epoch over all data, with this batch size
    _resumed: Checkpoint | None = None  # where this run began, unless at the start

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
        given = kwargs.get("args", args[1] if len(args) > 1 else None)
        if given is not None:
            check_arguments(given)  # before a data set is prepared in vain
        super().__init__(*args, **kwargs)
        check_arguments(self.args)
        if self.train_dataset is not None:
            check_dataset(self.train_dataset)
        self.callback_handler.callbacks.insert(0, _StepEnd(self._correct_epoch))  # before others
        self.add_callback(_EpochEnd(self._end_epoch))

    @property
    def pruner(self) -> Pruner:
        """The :class:`~infobatch.Pruner` of the current training run, or of the next one.

        Raises:
            RuntimeError: If there is no ``train_dataset``.
        """
        if self.train_dataset is None:
            raise RuntimeError(
                f"{type(self).__name__}.pruner has no data to prune: train_dataset is None. Pass "
                "train_dataset=… to the constructor."
            )
        pruner = self._pruner
        if pruner is None or (
            not has_begun(pruner) and pruner.num_samples != len(self.train_dataset)
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
        """Compute the Trainer's values for full data, and start a new pruner for as many epochs.

        Args:
            args, dataloader: as the Trainer passes them.

        Returns:
            What the Trainer's own method returns.
        """
        self._epoch_sampler.of_all_data = True
        try:
            values = super().set_initial_training_values(args, dataloader)
        finally:
            self._epoch_sampler.of_all_data = False
        num_train_epochs, self._whole_steps, *_, max_steps = values
        self._length = RunLength(self._whole_steps, max_steps)
        self._resumed = None
        self._forget_batches()
        self._under_way = None
        pruner = self.pruner
        if has_begun(pruner) or pruner.num_epochs != num_train_epochs:
            self._new_pruner(max(num_train_epochs, 1))
        return values

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the Trainer's scheduler, or take the user's, and pace it to pruned epochs.

        Args:
            num_training_steps: The number of optimizer steps over all data.
            optimizer: The optimizer, if it is not the Trainer's.

        Returns:
            The scheduler, which the Trainer advances once per optimizer step.

        Raises:
            ValueError: If the user's scheduler was built for steps of another size than those of
                the checkpoint.
        """
        length, given = self._length, self.lr_scheduler
        if length is None:  # the user looks at it before training, which creates it again
            return super().create_scheduler(num_training_steps, optimizer)
        if self._resized:
            num_training_steps = length.steps
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if isinstance(scheduler, ReduceLROnPlateau | GreedyLR):  # stepped by evaluations
            return scheduler
        if self._resized and given is not None:
            raise ValueError(
                f"train(resume_from_checkpoint=…) got a {type(scheduler).__name__} in optimizers=, and "
                f"{self._whole_steps} steps per epoch where the checkpoint has "
                f"{length.steps_per_epoch}: it is not known for which of the two that scheduler was "
                "built. Expected the batch size, gradient accumulation and number of processes of the "
                "checkpoint, or optimizers=(optimizer, None) and an lr_scheduler_type."
            )
        if isinstance(scheduler, PacedScheduler):  # the user's, continued in a second train()
            scheduler = scheduler.scheduler
        pace = RunPace(length.steps, self._steps_due)
        self.lr_scheduler = PacedScheduler(scheduler, pace, steps_per_epoch=1)
        return self.lr_scheduler

    @property
    def _resized(self) -> bool:
        """Whether an optimizer step has another size than in the checkpoint."""
        return self._length is not None and self._length.steps_per_epoch != self._whole_steps

    def _steps_due(self) -> int:
        """The steps of the schedule that are due, after the optimizer step that was just made."""
        assert self._under_way is not None
        assert self._length is not None
        return self._length.steps_due(self._under_way)

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
        resumed = self._resumed if epoch == epochs_trained else None
        self.pruner.set_epoch(epoch)
        now, skipped = self._enter_epoch(epoch, train_dataloader, resumed)
        self._under_way = now
        steps_to_come = self._steps_to_come(now)
        self.state.max_steps = self.state.global_step + sum(steps_to_come)
        if not steps_to_come[0]:  # the checkpoint of a finished run, whose last epoch is broken off
            self.control.should_training_stop = True
            return
        for callback in self.callback_handler.callbacks:
            bar = getattr(callback, "training_bar", None)
            if bar is not None:
                bar.total = self.state.max_steps
                bar.refresh()
        batches = skipped + now.batches_left  # of this epoch: a pruned one has fewer
        super()._run_epoch(
            model=model,
            epoch=epoch,
            train_dataloader=train_dataloader,
            steps_in_epoch=batches,
            num_update_steps_per_epoch=math.ceil(batches / now.batches_per_step),
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
            start_time=start_time,
            resume_from_checkpoint=resume_from_checkpoint,
            epochs_trained=epochs_trained,
            steps_trained_in_current_epoch=skipped,
        )

    def _enter_epoch(
        self, epoch: int, loader: Any, resumed: Checkpoint | None
    ) -> tuple[EpochUnderWay, int]:
        """The position at the start of an epoch, and the number of batches to skip.

        After a resume in the middle of an epoch, only what is left of it is trained on, in batches
        of the present size. Of the batches of that size that were already trained on, whole
        optimizer steps are skipped.
        """
        sampler, accumulated = self._epoch_sampler, self.args.gradient_accumulation_steps
        size, visited = self._samples_per_batch(loader), sampler.visited
        skipped = visited // (size * accumulated) * accumulated
        sampler.skipped = skipped * size
        left = len(loader) - skipped
        samples = min(visited + left * size, len(self.pruner.plan))
        return EpochUnderWay(epoch, samples, visited, left, size, accumulated), skipped

    def _samples_per_batch(self, loader: Any) -> int:
        """The samples of a batch, over all ranks."""
        return int(getattr(loader, "total_batch_size", None) or self._train_batch_size)

    def _steps_to_come(self, now: EpochUnderWay) -> list[int]:
        """The optimizer steps of this epoch, and of later ones as far as they are known."""
        assert self._length is not None
        pruner, length = self.pruner, self._length
        steps = [now.steps_left(length.share_of(now.epoch))]
        for epoch in range(now.epoch + 1, pruner.num_epochs):
            pruned = not pruner.plan.whole and may_prune(pruner, epoch)
            whole = now.steps_for(now.samples) if pruned else self._whole_steps
            steps.append(math.ceil(length.share_of(epoch) * whole))
        return steps

    def _correct_epoch(self) -> None:
        """Set the Trainer's ``state.epoch`` by samples; it counts batches, of a resumed epoch too."""
        if self._under_way is not None:
            self.state.epoch = self._under_way.epochs_done

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
            print(summary(self.pruner))
        return output

    # Checkpoints.

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        now, length = self._under_way, self._length
        assert length is not None
        epoch, done, size = self.pruner.epoch, 0, 0
        if now is not None:
            epoch, done, size = now.epoch, now.samples_done, now.samples_per_batch
            if now.over:
                epoch, done = epoch + 1, 0
        state = self.pruner.state_dict()  # every rank takes part
        if self.args.should_save:
            run = (length.steps_per_epoch, length.steps, self.pruner.num_epochs)
            Checkpoint(state, epoch, done, size, *run).write(output_dir)

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
        saved = Checkpoint.read(resume_from_checkpoint)
        self._length = self._continued_length(saved, num_train_epochs)
        self.pruner.load_state_dict(saved.pruner)
        self._resumed = saved
        if saved.epoch >= num_train_epochs:  # nothing is left to do
            self.state.max_steps = self.state.global_step
        return saved.epoch, 0  # the pruner knows which samples are left

    def _continued_length(self, saved: Checkpoint, num_train_epochs: int) -> RunLength:
        """The run's length in the checkpoint's steps, if those have another size."""
        length, per_epoch = self._length, saved.steps_per_epoch
        assert length is not None
        if per_epoch == length.steps_per_epoch:
            return length
        if self.args.max_steps <= 0:
            return RunLength(per_epoch, math.ceil(self.args.num_train_epochs * per_epoch))
        if num_train_epochs != saved.num_epochs:
            needed = math.ceil(saved.steps * length.steps_per_epoch / per_epoch)
            raise ValueError(
                f"train(resume_from_checkpoint=…) got max_steps={length.steps}, which takes "
                f"{num_train_epochs} epochs of {length.steps_per_epoch} steps, where the checkpoint's "
                f"run takes {saved.num_epochs} epochs of {per_epoch} steps. Expected a run of the same "
                f"length: pass max_steps={needed}, or num_train_epochs=… instead of max_steps."
            )
        return RunLength(per_epoch, saved.steps)


class _StepEnd(TrainerCallback):
    """Calls back when an optimizer step was made."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._callback()


class _EpochEnd(TrainerCallback):
    """Calls back when an epoch is over."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._callback()


class InfoBatchMixin(WeightedSteps, PrunedEpochs):
    """Put this before a Trainer class: ``class MyTrainer(InfoBatchMixin, SFTTrainer): ...``.

    ``pruner`` is the :class:`~infobatch.Pruner`, with ``scores``, ``plan`` and ``savings``; each
    ``train()`` starts with a new one, or with a checkpoint's.

    Args:
        *args: the arguments of the Trainer class.
        infobatch: how to prune; by default, the mean rule with its default settings.
        **kwargs: the keyword arguments of the Trainer class.

    Raises:
        TypeError: if ``infobatch`` is not an :class:`InfoBatchConfig`, or the training data has no
            length or is not read by index.
        ValueError: if a training argument is incompatible with pruned epochs.

    Example::

        class PrunedTrainer(InfoBatchMixin, MyTrainer):
            pass


        trainer = PrunedTrainer(model=model, args=args, train_dataset=data, infobatch=InfoBatchConfig())
    """


class InfoBatchTrainer(InfoBatchMixin, Trainer):
    """Hugging Face's ``Trainer`` with pruned epochs.

    It takes the Trainer's arguments and ``infobatch``. See :class:`InfoBatchMixin`, also for use
    with another Trainer class.

    Example::

        trainer = InfoBatchTrainer(
            model=model,
            args=args,
            train_dataset=data,
            infobatch=InfoBatchConfig(prune_ratio=0.5, delta=0.875),
        )
        trainer.train()
        print(trainer.pruner.savings)
    """


check_interface(Trainer, InfoBatchMixin)
