"""Ultralytics' trainers with pruned epochs, by task."""

from __future__ import annotations

from typing import Any

from ultralytics.models.yolo.classify import ClassificationTrainer
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.models.yolo.obb import OBBTrainer
from ultralytics.models.yolo.pose import PoseTrainer
from ultralytics.models.yolo.segment import SegmentationTrainer
from ultralytics.nn.modules import OBB, Classify, Detect, Pose, Segment
from ultralytics.utils import DEFAULT_CFG

from infobatch.integrations.ultralytics.losses import ClassificationLosses
from infobatch.integrations.ultralytics.trainer import PrunedTrainer
from infobatch.policies import AfssPrune, resolve_policy


class InfoBatchDetectionTrainer(PrunedTrainer, DetectionTrainer):  # type: ignore[misc]
    """Ultralytics' ``DetectionTrainer`` with pruned epochs, for ``YOLO(…).train(trainer=…)``.

    ``train_data`` is the pruned data (its ``savings``, ``scores``, ``export_scores``). Checkpoints have
    its state, so ``resume=True`` continues with the scores.

    ``policy="auto"`` by default; for other options derive a class with :meth:`with_options`. With
    ``policy="afss"``, every fifth epoch begins with a pass over all training images, which measures their
    precision and recall.

    With mosaic, an image is a mixture. Its loss belongs to the image that was drawn for the epoch; the
    others in it are chosen among all training images, whatever was pruned, so that the weighted
    gradient is still that of training on all images, on average. (Ultralytics itself chooses them
    among recently loaded images, unless ``cache="ram"``; these would be those that were not pruned.)

    With several devices, ``device=[0, 1]``, each process visits its share of the epoch, and they exchange their
    scores once per epoch.

    Args:
        cfg, overrides: as Ultralytics calls it.

    Raises:
        ValueError: if the task is not detection, or a setting cannot be used with pruning.
    """

    task, head = "detect", Detect


class InfoBatchSegmentationTrainer(PrunedTrainer, SegmentationTrainer):  # type: ignore[misc]
    """Ultralytics' ``SegmentationTrainer`` with pruned epochs: see :class:`InfoBatchDetectionTrainer`.

    Args:
        cfg, overrides: as Ultralytics calls it.

    Raises:
        ValueError: if the task is not segmentation of objects, or a setting cannot be used with pruning.
    """

    task, head = "segment", Segment


class InfoBatchPoseTrainer(PrunedTrainer, PoseTrainer):  # type: ignore[misc]
    """Ultralytics' ``PoseTrainer`` with pruned epochs: see :class:`InfoBatchDetectionTrainer`.

    Args:
        cfg, overrides: as Ultralytics calls it.

    Raises:
        ValueError: if the task is not poses, or a setting cannot be used with pruning.
    """

    task, head = "pose", Pose


class InfoBatchOBBTrainer(PrunedTrainer, OBBTrainer):  # type: ignore[misc]
    """Ultralytics' ``OBBTrainer`` (oriented boxes) with pruned epochs: see :class:`InfoBatchDetectionTrainer`.

    Args:
        cfg, overrides: as Ultralytics calls it.

    Raises:
        ValueError: if the task is not oriented boxes, or a setting cannot be used with pruning.
    """

    task, head = "obb", OBB


class InfoBatchClassificationTrainer(PrunedTrainer, ClassificationTrainer):  # type: ignore[misc]
    """Ultralytics' ``ClassificationTrainer`` with pruned epochs: see :class:`InfoBatchDetectionTrainer`.

    Args:
        cfg, overrides: as Ultralytics calls it.

    Raises:
        ValueError: if the task is not classification, a setting cannot be used with pruning, or the rule needs
            boxes.
    """

    task, head = "classify", Classify

    def __init__(
        self,
        cfg: Any = DEFAULT_CFG,
        overrides: dict[str, Any] | None = None,
        _callbacks: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(resolve_policy(self.pruning["policy"]), AfssPrune):
            raise ValueError(
                f'{type(self).__name__} got policy="afss", which goes by the precision and recall of the objects in '
                'an image. Expected a rule that goes by losses, such as policy="auto" or policy="mean".'
            )
        super().__init__(cfg, overrides, _callbacks)

    def _image_losses(self, criterion: Any) -> Any:
        return ClassificationLosses(criterion)
