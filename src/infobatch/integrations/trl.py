"""TRL's SFTTrainer with pruned epochs: instruction tuning, also with PEFT's adapters."""

from __future__ import annotations

from infobatch.integrations.versions import require

require("trl", ">=1.16,<2", extra="trl")

from trl import SFTTrainer  # noqa: E402

from infobatch.integrations.transformers import InfoBatchConfig, InfoBatchMixin  # noqa: E402

__all__ = ["InfoBatchConfig", "InfoBatchMixin", "InfoBatchSFTTrainer"]


class InfoBatchSFTTrainer(InfoBatchMixin, SFTTrainer):
    """``SFTTrainer`` with one more argument, ``infobatch=InfoBatchConfig(…)``.

    A sequence's score is the mean loss of the tokens that are trained on: those of the completion,
    where the loss is completion-only. Packing and padding-free batches are refused.
    """
