"""TRL's GRPOTrainer with pruned epochs: fewer generations for prompts that teach nothing.

A prompt whose completions all get the same reward has no gradient. Which prompts those are is only
known after generation, which is the expensive part. So prompts whose last group had little spread
are used less often, and weigh more when they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from trl import GRPOTrainer

from infobatch.integrations.transformers.checkpoint import Checkpoint
from infobatch.integrations.transformers.config import InfoBatchConfig
from infobatch.integrations.transformers.loading import INDEX
from infobatch.integrations.transformers.pace import EpochUnderWay
from infobatch.integrations.transformers.support import check_overridden
from infobatch.integrations.trl.groups import (
    CarryIndexInRows,
    GroupSampler,
    SpreadPrune,
    effective_number,
    group_scores,
)
from infobatch.integrations.trl.weighted import WeightedRows, scale_gradient

WEIGHTS = "infobatch_weights"


class InfoBatchGRPOMixin(WeightedRows):
    """Put this before a class derived from ``GRPOTrainer``, which gets the argument ``infobatch=``.

    A prompt's score is the root mean square of its group's advantages. By default, prompts are
    pruned by :class:`~infobatch.integrations.trl.SpreadPrune` with the configuration's
    ``prune_ratio``. The weight of a prompt multiplies the gradient of its completions, whatever the
    form of the loss; the logged loss and metrics do not change.

    Args:
        *args: the arguments of the Trainer class.
        **kwargs: its keyword arguments, and ``infobatch``, an ``InfoBatchConfig`` that says how to prune.

    Raises:
        ValueError: if ``shuffle_dataset`` is False, because the pruner decides on the order; if the
            configuration has ``shadow=``, because a forecast needs losses.

    Example::

        class MyPrunedTrainer(InfoBatchGRPOMixin, MyGRPOTrainer):
            pass
    """

    _row_weights: torch.Tensor | None = None  # of the completions whose loss is being computed

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.shuffle_dataset:
            raise ValueError(
                "InfoBatchGRPOTrainer got shuffle_dataset=False, expected True: the pruner decides "
                "which prompts an epoch visits, and in which order. If the order matters, train "
                "without pruning."
            )
        if self.infobatch.shadow:
            raise ValueError(
                f"InfoBatchGRPOTrainer got InfoBatchConfig(shadow={self.infobatch.shadow!r}), expected none: "
                "scores are spreads of rewards here, from which no saving can be forecast. Compare "
                "with a training on fewer prompts instead."
            )

    # The loader: the pruner's prompts in groups, and the index in each row.

    @property
    def _prompts_at_once(self) -> int:
        """The prompts of a generation batch, over all ranks."""
        return int(self.args.generation_batch_size // self.num_generations)

    @property
    def _repeats(self) -> int:
        return int(self.num_iterations * self.args.steps_per_generation)

    def _pruning(self) -> InfoBatchConfig:
        config = self.infobatch
        if config.policy is not None:
            return config
        ratio = 0.5 if config.prune_ratio is None else config.prune_ratio
        rule = SpreadPrune(ratio, batch=self._prompts_at_once)
        return replace(config, policy=rule, prune_ratio=None)

    def _get_train_sampler(self, dataset: Any = None) -> GroupSampler:
        return GroupSampler(
            self._epoch_sampler,
            prompts=self._prompts_at_once,
            copies=self.num_generations,
            repeats=self._repeats,
        )

    def _carry_index(self, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        return CarryIndexInRows(collate)

    def _batches_of_all_data(self) -> int:
        return len(self.train_dataset) // self._prompts_at_once * self._repeats

    def _enter_epoch(
        self, epoch: int, loader: Any, resumed: Checkpoint | None
    ) -> tuple[EpochUnderWay, int]:
        """The position in rows, of which several have the same prompt."""
        rows, accumulated = self._samples_per_batch(loader), self.args.gradient_accumulation_steps
        done = 0 if resumed is None else resumed.samples_done
        self._epoch_sampler.skipped = self._epoch_sampler.visited  # TRL skips what it generated for
        skipped, batches = done // rows, len(loader)
        if (
            resumed is not None
            and done
            and (self._resized or resumed.samples_per_batch != rows or skipped % accumulated)
        ):
            raise ValueError(
                "train(resume_from_checkpoint=…) got a checkpoint from the middle of an epoch, and "
                f"generation batches of {rows} completions where the checkpoint has "
                f"{resumed.samples_per_batch}, or another number of steps for each. Expected the same "
                "sizes, or a checkpoint from the end of an epoch (save_strategy='epoch')."
            )
        return EpochUnderWay(
            epoch, batches * rows, done, batches - skipped, rows, accumulated
        ), skipped

    # A generation: its groups are scored, its completions weighted.

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        index = [row.pop(INDEX, None) for row in inputs]
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        if None in index:
            raise RuntimeError(
                "GRPOTrainer generated for prompts without their indices. Expected a batch of the "
                "loader that get_train_dataloader() makes. If you override that, change the data set "
                "instead."
            )
        advantages = output["advantages"]
        rows = torch.tensor(index, device=advantages.device)
        if not self.pruner.plan.whole:
            output[WEIGHTS] = self._weights_of(rows)
        self._record(rows, advantages)
        return output

    def _record(self, rows: torch.Tensor, advantages: torch.Tensor) -> None:
        """Score the groups, which may span ranks: each rank gathers all and reports its part."""
        prompts = self.accelerator.gather(rows)[:: self.num_generations]
        scores = group_scores(self.accelerator.gather(advantages), self.num_generations)
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        if len(prompts) > rank:
            shard = scores[rank::ranks]
            self.pruner.update(shard, index=prompts[rank::ranks])
        spread = scores > 0
        metrics = self._metrics["train"]
        metrics["infobatch/zero_spread_fraction"].append((~spread).float().mean().item())
        effective = effective_number(self._weights_of(prompts) * spread)
        metrics["infobatch/effective_prompts"].append(effective.item())
        saved = self.pruner.savings.saved * self.num_generations
        metrics["infobatch/generations_saved"] = [saved]

    # A step: TRL's loss, with weighted gradients.

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Train on a part of the generated completions, as usual.

        Args:
            model, inputs, num_items_in_batch: as the Trainer passes them.

        Returns:
            The loss, as TRL logs it.
        """
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self._under_way is not None:
            self._under_way.count_batch()
        return loss

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        self._row_weights = inputs.get(WEIGHTS)
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
        finally:
            self._row_weights = None
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """The log-probabilities and entropies, through which alone a loss depends on the model."""
        logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        weights = self._row_weights
        if weights is not None and logps.requires_grad:
            logps = scale_gradient(logps, weights)
            if entropies is not None and entropies.requires_grad:
                entropies = scale_gradient(entropies, weights)
        return logps, entropies, aux_loss


class InfoBatchGRPOTrainer(InfoBatchGRPOMixin, GRPOTrainer):
    """``GRPOTrainer`` with one more argument, ``infobatch=InfoBatchConfig(…)``.

    See :class:`InfoBatchGRPOMixin`; everything else is TRL's.

    Example::

        trainer = InfoBatchGRPOTrainer(
            model, reward, args=args, train_dataset=prompts, infobatch=InfoBatchConfig(delta=1.0)
        )
        trainer.train()
    """


check_overridden(
    "trl",
    GRPOTrainer,
    InfoBatchGRPOMixin,
    ("_get_train_sampler", "_generate_and_score_completions", "_compute_loss"),
)
