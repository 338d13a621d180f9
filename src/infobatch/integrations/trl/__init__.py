"""TRL's trainers with pruned epochs: instruction tuning (SFT), preferences (DPO) and GRPO."""

from infobatch.integrations.versions import require

require("trl", ">=1.16,<2", extra="trl")

from infobatch.integrations.transformers import InfoBatchConfig, InfoBatchMixin  # noqa: E402
from infobatch.integrations.trl.dpo import InfoBatchDPOMixin, InfoBatchDPOTrainer  # noqa: E402
from infobatch.integrations.trl.groups import SpreadPrune  # noqa: E402
from infobatch.integrations.trl.grpo import InfoBatchGRPOMixin, InfoBatchGRPOTrainer  # noqa: E402
from infobatch.integrations.trl.sft import InfoBatchSFTTrainer  # noqa: E402

__all__ = [
    "InfoBatchConfig",
    "InfoBatchDPOMixin",
    "InfoBatchDPOTrainer",
    "InfoBatchGRPOMixin",
    "InfoBatchGRPOTrainer",
    "InfoBatchMixin",
    "InfoBatchSFTTrainer",
    "SpreadPrune",
]
