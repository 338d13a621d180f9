"""Hugging Face's Trainer with pruned epochs: ``InfoBatchTrainer``, or a mixin for your own."""

from infobatch.integrations.versions import require

require("transformers", ">=5.22,<6", extra="transformers")

from infobatch.integrations.transformers.config import InfoBatchConfig  # noqa: E402
from infobatch.integrations.transformers.trainer import (  # noqa: E402
    InfoBatchMixin,
    InfoBatchTrainer,
)

__all__ = ["InfoBatchConfig", "InfoBatchMixin", "InfoBatchTrainer"]
