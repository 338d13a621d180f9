"""A training step: the Trainer's loss, rescaled sample by sample, and the samples' scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from infobatch import PerSample
from infobatch.integrations.transformers import losses
from infobatch.integrations.transformers.loading import INDEX
from infobatch.integrations.transformers.pace import EpochUnderWay
from infobatch.integrations.transformers.rescaling import WAY_OUT, ItemShares, Share, UnreducedLoss

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

CLASSIFIERS = {
    f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio")
}  # whose problem_type determines their loss


class WeightedSteps(_Base):
    """The part of the mixin that handles batches; the other part has the ``pruner``."""

    compute_loss_func: Any
    _share: Share
    _under_way: EpochUnderWay | None = None
    _batch: Any = None  # the indices of the batch that is being trained on
    _recorded = False  # its losses were recorded
    _plain_share: Any = 1.0  # its loss without weights / with weights
    _shift: bool | None = None  # whether position t predicts label t + 1; the first batch shows it

    def _forget_batches(self) -> None:
        self._share = Share(trusted=self._defines_samples_losses)
        self._shift = None

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Train on a batch, as usual, and record its samples' losses.

        Args:
            model, inputs, num_items_in_batch: as the Trainer passes them.

        Returns:
            The loss without weights, for the log.

        Raises:
            RuntimeError: if the batch has no index, or another class has taken the mixin's place.
        """
        index = inputs.pop(INDEX, None)
        if index is None or self._under_way is None:
            raise RuntimeError(
                "training_step() got a batch without its samples' indices. Expected one of the loader "
                "that get_train_dataloader() makes. If you override that, change the data collator or "
                "the data set instead."
            )
        self._batch, self._recorded, self._plain_share = index, False, 1.0
        try:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._batch = None
        if not self._recorded:
            raise RuntimeError(
                "training_step() finished without the mixin's compute_loss(), so the samples got "
                "no scores and no weights. If your class overrides compute_loss, let it call "
                "super().compute_loss(…), or put the mixin before it: class New(InfoBatchMixin, Own)."
            )
        self._under_way.count_batch()
        # The returned loss is only logged: with weights it would jump in pruned epochs.
        plain: torch.Tensor = loss * self._plain_share
        return plain

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the Trainer's loss; in training, each sample's part in it is multiplied by its weight.

        Args:
            model, inputs, return_outputs, num_items_in_batch: as the Trainer passes them.

        Returns:
            The loss, or with ``return_outputs`` the loss and the model's outputs.
        """
        compute = partial(
            super().compute_loss,
            return_outputs=return_outputs,
            num_items_in_batch=num_items_in_batch,
        )
        if self._batch is None:  # evaluation, prediction
            return compute(model, inputs)
        given = dict(inputs)  # the Trainer removes entries
        items = partial(ItemShares.of, self, given, num_items_in_batch)
        counted = items(shift=self._loss_shifts_labels)  # as the Trainer counts
        function, outputs = self.compute_loss_func, []
        unreduced = UnreducedLoss(function, counted.before_ranks)
        hook = model.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            if function is not None:
                self.compute_loss_func = unreduced
            result = compute(model, inputs)
        finally:
            hook.remove()
            self.compute_loss_func = function
        loss = result[0] if return_outputs else result
        samples = unreduced.per_sample
        if samples is None:
            output = outputs[0] if outputs else None
            if self._shift is None:
                self._shift = self._find_shift(model, given, output, loss.detach(), items)
            with torch.set_grad_enabled(not self.pruner.plan.whole):
                samples = self._samples(model, given, output)
            factor = self._share.of(loss, samples.losses.mean(), items(shift=bool(self._shift)))
        else:
            factor = counted.by_items
        loss = self._rescaled(loss, samples, factor)
        return (loss, result[1]) if return_outputs else loss

    def _rescaled(self, loss: torch.Tensor, samples: PerSample, factor: Any) -> torch.Tensor:
        """Replace the samples' parts in the loss by their weighted ones; record the scores."""
        index = self._batch
        if len(samples.losses) != len(index):
            raise RuntimeError(
                f"compute_loss() got {len(samples.losses)} losses for a batch of {len(index)} samples, "
                "expected one each. If the data collator puts several samples into one row (padding-"
                "free or packed), use one that pads."
            )
        # The Trainer divides by the items of all micro-batches and ranks of a step. Their weights are not
        # known here, so the divisor stays as it is: the same however a step is split.
        samples = PerSample(samples.losses, samples.scores, samples.extras)
        # A second forward of the same batch is weighted again, but not recorded again.
        again, self._recorded = self._recorded, True
        if self.pruner.plan.whole:  # all weights are 1
            if not again:
                detached = PerSample(samples.losses.detach(), samples.scores, samples.extras)
                self.pruner.update(detached, index=index)
            return loss
        if again:
            weighted = self.pruner.reweight(samples, index=index)
        else:
            weighted = self.pruner.update(samples, index=index)
        rescaled: torch.Tensor = loss + (weighted - samples.losses.mean()) * factor
        plain, with_weights = loss.detach(), rescaled.detach()
        self._plain_share = torch.where(with_weights == 0, 1.0, plain / with_weights)
        return rescaled

    def per_sample_losses(
        self, model: Any, inputs: Mapping[str, Any], outputs: Any
    ) -> torch.Tensor | PerSample | None:
        """One loss per sample, whose plain mean is the batch's loss; override for your own models.

        By default, the losses are computed from ``outputs.logits`` as in transformers' own loss
        functions.

        Args:
            model: The model, as the Trainer has wrapped it.
            inputs: The batch.
            outputs: What the model returned for it.

        Returns:
            A 1-D tensor, or a ``PerSample(losses, scores)`` to rank samples by something other than
            the loss; None if the losses of single samples cannot be told.

        Example::

            class MyTrainer(InfoBatchTrainer):
                def per_sample_losses(self, model, inputs, outputs):
                    return cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        """
        return self._from_outputs(model, inputs, outputs, shift=bool(self._shift))

    def _from_outputs(
        self, model: Any, inputs: Mapping[str, Any], outputs: Any, *, shift: bool
    ) -> PerSample | None:
        inner = self.accelerator.unwrap_model(model)
        classifies = (getattr(inner, "loss_type", None) or "") in CLASSIFIERS
        config = getattr(inner, "config", None)
        return losses.from_outputs(
            outputs,
            inputs,
            problem_type=getattr(config, "problem_type", None) if classifies else None,
            shift=shift,
            label_smoothing=0.0 if self.label_smoother is None else self.label_smoother.epsilon,
        )

    def _find_shift(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        outputs: Any,
        loss: torch.Tensor,
        items: Callable[..., ItemShares],
    ) -> bool | None:
        """Whether the model's loss shifts the labels; None if this loss cannot tell.

        Neither the class nor its ``loss_type`` shows this: GPT-2 has no type and shifts, BART's
        decoder has the type of a causal model and does not. So both variants are compared with the
        model's own loss.
        """
        distances = {}
        with torch.no_grad():
            for shift in (False, True):
                samples = self._from_outputs(model, inputs, outputs, shift=shift)
                if samples is not None:
                    distances[shift] = items(shift=shift).distance(loss, samples.losses.mean())
        if len(distances) < 2:
            return True in distances
        if not loss.isfinite():
            return None
        if math.isclose(*distances.values(), abs_tol=1e-6):
            # All tokens have the same loss, as with a zero head: check which loss transformers
            # uses.
            inner = self.accelerator.unwrap_model(model)
            function = getattr(inner, "loss_function", None)
            return function is ForCausalLMLoss and not inner.config.is_encoder_decoder
        return min(distances, key=distances.__getitem__)

    def _samples(self, model: Any, inputs: Mapping[str, Any], outputs: Any) -> PerSample:
        if self.compute_loss_func is not None and not self._defines_samples_losses:
            raise TypeError(
                "compute_loss_func returned a scalar, expected one loss per sample: a 1-D tensor, or "
                "infobatch.PerSample(losses, scores). Build the criterion with "
                'reduction="none"; their mean is taken for you. Or keep it as it is, and: '
                f"{WAY_OUT}."
            )
        result = self.per_sample_losses(model, inputs, outputs)
        if result is None:
            name = type(self.accelerator.unwrap_model(model)).__name__
            raise TypeError(
                f"compute_loss() cannot tell the losses of single samples from what {name} returned, "
                f"expected logits that match the labels. {WAY_OUT}."
            )
        return result if isinstance(result, PerSample) else PerSample(result, result.detach())

    @property
    def _defines_samples_losses(self) -> bool:
        return type(self).per_sample_losses is not WeightedSteps.per_sample_losses
