"""What AFSS goes by: the precision and the recall of each training image."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ultralytics.utils import RANK

_CONFIDENCE = 0.25  # of the detections that count, with an IoU of 0.5


def smaller_of_precision_and_recall(correct: torch.Tensor, objects: int) -> float:
    """The smaller one of an image's precision and recall: which detections are right, and how many objects there are."""
    if not objects or not len(correct):
        return float(objects == len(correct))
    return float(correct.sum()) / max(objects, len(correct))


def qualities_by_path(trainer: Any, loader: Any) -> dict[str, float]:
    """The smaller one of precision and recall of each image that a loader reads."""
    validator, quality_of = trainer.get_validator(), {}
    validator.device, validator.data, validator.args.conf = (
        trainer.device,
        trainer.data,
        _CONFIDENCE,
    )
    model = trainer.ema.ema.eval()
    validator.init_metrics(model)
    with torch.no_grad():
        for raw in loader:
            batch = validator.preprocess(raw)
            detections = validator.postprocess(model(batch["img"]))
            for image, detected in enumerate(detections):
                labelled = validator._prepare_batch(image, batch)
                quality_of[labelled["im_file"]] = _quality(validator, detected, labelled)
    return quality_of


def from_all_ranks(quality: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Merge what the ranks have measured: each image has a number on one of them, and NaN on the others."""
    if RANK == -1:
        return quality
    merged = quality.nan_to_num(-1.0).to(device)
    dist.all_reduce(merged, op=dist.ReduceOp.MAX)
    return merged.cpu().where(merged.cpu() >= 0, torch.nan)


def same_buffers(model: torch.nn.Module) -> None:
    """Give every rank the buffers of the first one, as Ultralytics does before it validates. Collective."""
    if RANK != -1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def _quality(validator: Any, detected: dict[str, torch.Tensor], labelled: dict[str, Any]) -> float:
    """The smaller one of an image's precision and recall, at an IoU of 0.5."""
    matches = validator._process_batch(validator._prepare_pred(detected), labelled)["tp"]
    return smaller_of_precision_and_recall(torch.as_tensor(matches[:, 0]), len(labelled["cls"]))
