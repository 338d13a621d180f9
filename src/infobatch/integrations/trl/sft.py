"""TRL's SFTTrainer with pruned epochs: instruction tuning, also with PEFT's adapters."""

from __future__ import annotations

from trl import SFTTrainer

from infobatch.integrations.transformers import InfoBatchMixin


class InfoBatchSFTTrainer(InfoBatchMixin, SFTTrainer):
    """``SFTTrainer`` with one more argument, ``infobatch=InfoBatchConfig(…)``.

    A sequence's score is the mean loss of the tokens that are trained on: those of the completion,
    if the loss is completion-only. Packing and padding-free batches are refused.
    """
