"""TRL's SFTTrainer with pruned epochs: instruction tuning, also with PEFT's adapters."""

from __future__ import annotations

from trl import SFTTrainer

from infobatch.integrations.transformers import InfoBatchMixin


class InfoBatchSFTTrainer(InfoBatchMixin, SFTTrainer):
    """``SFTTrainer`` with one more argument, ``infobatch=InfoBatchConfig(…)``.

    A sequence's score is the mean loss of the tokens that are trained on: those of the completion,
    if the loss is completion-only.

    Args:
        *args: The arguments of ``SFTTrainer``.
        infobatch: How to prune; by default, the mean rule with its default settings.
        **kwargs: The keyword arguments of ``SFTTrainer``.

    Raises:
        ValueError: If ``packing`` or ``padding_free`` is set: several sequences share a row.

    Example::

        trainer = InfoBatchSFTTrainer(
            model, args=args, train_dataset=data, infobatch=InfoBatchConfig(prune_ratio=0.5)
        )
        trainer.train()
    """
