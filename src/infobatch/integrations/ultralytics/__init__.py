"""Ultralytics' trainers with pruned epochs, one for each task, and their losses image by image."""

from infobatch.integrations.versions import require

require("ultralytics", ">=8.4.190,<8.5", extra="ultralytics")

from infobatch.integrations.ultralytics.losses import ImageLosses  # noqa: E402
from infobatch.integrations.ultralytics.quality import (  # noqa: E402
    smaller_of_precision_and_recall,
)
from infobatch.integrations.ultralytics.tasks import (  # noqa: E402
    InfoBatchClassificationTrainer,
    InfoBatchDetectionTrainer,
    InfoBatchOBBTrainer,
    InfoBatchPoseTrainer,
    InfoBatchSegmentationTrainer,
)

__all__ = [
    "ImageLosses",
    "InfoBatchClassificationTrainer",
    "InfoBatchDetectionTrainer",
    "InfoBatchOBBTrainer",
    "InfoBatchPoseTrainer",
    "InfoBatchSegmentationTrainer",
    "smaller_of_precision_and_recall",
]
