"""TRL's DPOTrainer with pruned epochs: pairs that are already told apart are seen less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from trl import DPOTrainer

from infobatch.integrations.transformers.loading import INDEX
from infobatch.integrations.transformers.support import check_overridden
from infobatch.integrations.trl.weighted import WeightedRows, scale_gradient

_ACROSS_PAIRS = ("aot", "aot_unpaired", "sft")  # losses that cannot be divided by pair


class InfoBatchDPOMixin(WeightedRows):
    """Put this before a class derived from ``DPOTrainer``, which gets the argument ``infobatch=``.

    A pair's score is the loss of the standard DPO objective, −log σ(β × margin), whatever loss is
    trained with. The weight of a pair multiplies the gradient of its two completions; the logged
    loss and metrics do not change.

    Args:
        *args: the arguments of the Trainer class.
        **kwargs: its keyword arguments, and ``infobatch``, an ``InfoBatchConfig`` that says how to prune.

    Raises:
        ValueError: if ``loss_type`` mixes the pairs of a batch.

    Example::

        class MyPrunedTrainer(InfoBatchDPOMixin, MyDPOTrainer):
            pass
    """

    _pairs: torch.Tensor | None = None  # of the batch that is being trained on

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mixed = [name for name in self.loss_types if name in _ACROSS_PAIRS]
        if mixed:
            raise ValueError(
                f"InfoBatchDPOTrainer got loss_type={mixed[0]!r}, expected a loss that is a mean over "
                "pairs: this one mixes the pairs of a batch, so no pair can have its own weight. "
                "Train without pruning, or with another loss."
            )

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Train on a batch, as usual, and record its pairs' losses.

        Args:
            model, inputs, num_items_in_batch: as the Trainer passes them.

        Returns:
            The loss, as TRL logs it.
        """
        self._pairs = inputs.pop(INDEX)
        try:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._pairs = None
        assert self._under_way is not None
        self._under_way.count_batch()
        return loss

    def _compute_loss(self, model: Any, inputs: Any, return_outputs: bool) -> Any:
        if self._pairs is None:  # evaluation
            return super()._compute_loss(model, inputs, return_outputs)
        # The index is already on the device if the loader has moved the batch.
        pairs = self._pairs.to(inputs["input_ids"].device)
        # Chosen completions come first, then rejected ones; in a whole epoch all weights are 1.
        weights = None if self.pruner.plan.whole else self._weights_of(pairs).repeat(2)
        with self._watching(model, weights) as seen:
            result = super()._compute_loss(model, inputs, return_outputs)
        if self.precompute_ref_logps:
            seen["reference"] = torch.cat(
                [inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]]
            )
        chosen, rejected = (seen["policy"] - seen["reference"]).chunk(2)
        losses = -functional.logsigmoid(self.beta * (chosen - rejected).float())
        self.pruner.update(losses, index=pairs)
        return result

    @contextmanager
    def _watching(
        self, model: Any, weights: torch.Tensor | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Record the completions' log-probabilities, and weight the gradients of the policy's."""
        seen: dict[str, torch.Tensor] = {}

        def note(module: Any, args: Any, output: Mapping[str, Any]) -> Any:
            logps: torch.Tensor = output["log_probs"]
            # An adapter's reference is the same module, without gradients.
            name = "policy" if torch.is_grad_enabled() else "reference"
            seen[name] = logps.detach().sum(1)
            if name == "policy" and weights is not None:
                output["log_probs"] = scale_gradient(logps, weights)  # type: ignore[index]
            return output

        modules = [model] if self.ref_model is None else [model, self.ref_model]
        hooks = [module.register_forward_hook(note) for module in modules]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


class InfoBatchDPOTrainer(InfoBatchDPOMixin, DPOTrainer):
    """``DPOTrainer`` with one more argument, ``infobatch=InfoBatchConfig(…)``.

    See :class:`InfoBatchDPOMixin`; everything else is TRL's.

    Example::

        trainer = InfoBatchDPOTrainer(
            model, ref_model, args=args, train_dataset=pairs, infobatch=InfoBatchConfig(delta=1.0)
        )
        trainer.train()
    """


check_overridden("trl", DPOTrainer, InfoBatchDPOMixin, ("_compute_loss",))
