"""Object detection on BCCD's microscope images of blood cells, with Ultralytics' model, loss and metric.

205 images of 240 × 320 for 60 epochs: a few minutes on one core.

The lab's own loop trains, not Ultralytics' trainer: a run continues from a checkpoint bit for bit, may end
within an epoch, and takes any arm, as for the other recipes. Model, losses image by image, suppression of
detections and average precision are those that
:class:`infobatch.integrations.ultralytics.InfoBatchDetectionTrainer` uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from infobatch import PerSample
from infobatch.integrations.ultralytics import ImageLosses, smaller_of_precision_and_recall
from infobatch.lab.datasets.readers import Bccd
from infobatch.lab.datasets.tensors import Tensors
from infobatch.lab.options import number_from
from infobatch.lab.recipes.evaluation import batches, only_looking

# After the integration, which checks the version.
from ultralytics.cfg import get_cfg  # isort: skip
from ultralytics.engine.validator import BaseValidator  # isort: skip
from ultralytics.nn.tasks import DetectionModel  # isort: skip
from ultralytics.utils import ROOT, YAML  # isort: skip
from ultralytics.utils.metrics import ap_per_class, box_iou  # isort: skip
from ultralytics.utils.nms import non_max_suppression  # isort: skip
from ultralytics.utils.ops import xywh2xyxy  # isort: skip
from ultralytics.utils.torch_utils import unwrap_model  # isort: skip

STRIDE = (
    32  # heights that the network sees are multiples of it: the images between two grey stripes
)
NUM_CLASSES = len(Bccd.class_names)
DEPTH, CHANNELS, MOST_CHANNELS = (
    0.5,
    0.125,
    1024,
)  # of YOLO11; the nano model has twice the channels
NO_BOX = -1  # as a class: images have different numbers of boxes
MOST_ZOOM, MOST_SHIFT = 1.4, 0.1
LEAST_VISIBLE = 0.1  # of a box's area
IOUS = torch.linspace(0.5, 0.95, 10)
NUM_SMOKE = 64


@dataclass
class Recipe:
    """YOLO11 with half the channels of its nano model, 810,649 parameters, from scratch, AdamW.

    A sample is ``(image, boxes)``: pixels as uint8, and rows of a class, -1 where there is no box, with
    the centre, the width and the height. Images are flipped, zoomed and shifted; there is no mosaic.

    The choices are for speed: on one Zen 4 core an epoch of the nano model takes 11.2 core-seconds, with half
    the channels 5.2; at half the size (``scale=2``) it takes 3.6 on a core without AVX-512. All in float32:
    bfloat16 is faster only on processors that have it, and seven times slower elsewhere. Of 60 epochs on a
    validation split (then in bfloat16), half lost 5.6 points (50.1 instead of 55.7), and at half the size 6.1
    (33.8 instead of 39.9).

    Options:
        scale: divide height and width by this, 1 or 2.
    """

    folder: Path | None = None
    smoke: bool = False
    scale: int = 1
    epochs: int = 60

    batch_size = 16
    learning_rate = 4e-3
    evaluate_every = 20
    metric = "mAP50-95"
    unit = "points"
    margin = 1.0
    class_names = Bccd.class_names

    def __post_init__(self) -> None:
        number_from("scale", self.scale, 1, 2)
        number_from("epochs", self.epochs, 1)
        self.source = Bccd(self.folder)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """205 images to train; the published 87 to validate and 72 to test are all to test."""
        return self._images("train"), self._images("val", "test")

    def _images(self, *splits: str) -> Tensors:
        parts = [self.source.split(split) for split in splits]
        images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
        if self.scale > 1:
            images = functional.avg_pool2d(images.float(), self.scale).round().to(images.dtype)
        boxes = [torch.from_numpy(rows) for _, lists in parts for rows in lists]
        padded = pad_sequence(boxes, batch_first=True, padding_value=NO_BOX)
        count = NUM_SMOKE if self.smoke else None
        return Tensors(images[:count], padded[:count])

    def model(self) -> nn.Module:
        """YOLO11 as Ultralytics builds it, of another width."""
        layers = YAML.load(ROOT / "cfg" / "models" / "11" / "yolo11.yaml")
        scales = {"n": [DEPTH, CHANNELS, MOST_CHANNELS]}
        layers |= {"nc": NUM_CLASSES, "scales": scales, "scale": "n"}
        model = DetectionModel(layers, verbose=False)
        model.args = get_cfg()  # the gains of the loss
        return model.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """The box, class and DFL losses of each image."""
        images, boxes = zoomed_and_flipped(*batch)
        per_image = ImageLosses(unwrap_model(model).init_criterion())
        return per_image(model(images), as_ultralytics(images, boxes))

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """The average precision in percent, the mean over classes and IoUs of 0.5 to 0.95."""
        outcomes = []
        for detected, boxes in detections(model, data, confidence=0.001):
            correct = matched(detected, boxes)
            outcomes.append((correct, detected[:, 4], detected[:, 5], boxes[:, 0]))
        columns = (torch.cat(column).numpy() for column in zip(*outcomes, strict=True))
        precision = ap_per_class(*columns)[5]  # by class and IoU
        return 100 * float(precision.mean()) if len(precision) else 0.0

    def qualities(self, model: nn.Module, data: Dataset[Any]) -> torch.Tensor:
        """The smaller one of precision and recall of each image, for the rule AFSS."""
        return torch.tensor(
            [
                smaller_of_precision_and_recall(matched(detected, boxes)[:, 0], len(boxes))
                for detected, boxes in detections(model, data, confidence=0.25)
            ]
        )

    def show(self, data: Dataset[Any], index: int) -> np.ndarray:
        """The image, as red, green and blue, at half its size."""
        image: np.ndarray = data[index][0].permute(1, 2, 0).numpy()[::2, ::2]
        return image


def standardised(images: torch.Tensor) -> torch.Tensor:
    """Pixels of 0 to 255 as floats around 0."""
    return (images.float() - 183) / 21  # the training images' mean and standard deviation


def seen_height(images: torch.Tensor) -> int:
    """The height that the network sees."""
    return -(-images.shape[2] // STRIDE) * STRIDE


def zoomed_and_flipped(
    images: torch.Tensor, boxes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zoom, shift and flip each image in both directions, with its boxes, to the network's size."""
    count, device = len(images), images.device
    zoom = MOST_ZOOM ** (2 * torch.rand(count, 1, device=device) - 1)
    flip = torch.randint(0, 2, (count, 2), device=device) * 2 - 1
    shift = MOST_SHIFT * 2 * (2 * torch.rand(count, 2, device=device) - 1)
    (height, width), tall = images.shape[2:], seen_height(images)
    taller = torch.tensor([1.0, tall / height], device=device)
    factor = (
        flip * taller / zoom
    )  # from coordinates of the result to those of the image, in -1 to 1
    where = torch.diag_embed(factor)
    grid = functional.affine_grid(
        torch.cat([where, shift.unsqueeze(2)], 2), [count, 3, tall, width], align_corners=False
    )
    results = functional.grid_sample(standardised(images), grid, align_corners=False)
    kinds, centres, sizes = boxes[..., :1], boxes[..., 1:3], boxes[..., 3:]
    centres = ((2 * centres - 1 - shift.unsqueeze(1)) / factor.unsqueeze(1) + 1) / 2
    sizes = sizes / factor.abs().unsqueeze(1)
    low, high = (centres - sizes / 2).clamp(0, 1), (centres + sizes / 2).clamp(0, 1)
    visible = (high - low).prod(2, keepdim=True) > LEAST_VISIBLE * sizes.prod(2, keepdim=True)
    kinds = torch.where(visible, kinds, NO_BOX)
    results = results.contiguous(memory_format=torch.channels_last)
    return results, torch.cat([kinds, (low + high) / 2, high - low], 2)


def as_ultralytics(images: torch.Tensor, boxes: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch as Ultralytics' loss takes it: the boxes of all images in one list."""
    is_box = boxes[..., 0] != NO_BOX
    listed = boxes[is_box]
    return {
        "img": images,
        "batch_idx": is_box.nonzero()[:, 0].float(),
        "cls": listed[:, :1],
        "bboxes": listed[:, 1:],
    }


def detections(
    model: nn.Module, data: Dataset[Any], *, confidence: float
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What is detected in each image, and what is there: boxes as corners in pixels.

    A detection has a box, a confidence and a class; a true box has a class and a box.
    """
    results = []
    with only_looking(model) as device:
        for images, boxes in batches(data, 16):
            (height, width), tall = images.shape[2:], seen_height(images)
            stripe = (tall - height) // 2
            inputs = functional.pad(standardised(images.to(device)), (0, 0, stripe, stripe))
            outputs = model(inputs.contiguous(memory_format=torch.channels_last))[0].cpu()
            # Without a limit of time: the same on a busy machine.
            detections_in_batch = non_max_suppression(
                outputs, confidence, 0.7, multi_label=True, max_time_img=float("inf")
            )
            in_pixels = boxes * torch.tensor([1, width, height, width, height])
            in_pixels[..., 2] += stripe
            for detected, rows in zip(detections_in_batch, in_pixels, strict=True):
                true = rows[rows[:, 0] != NO_BOX]
                results.append((detected, torch.cat([true[:, :1], xywh2xyxy(true[:, 1:])], 1)))
    return results


def matched(detected: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Which detections are right, (detections, IoUs), as Ultralytics matches them to true boxes."""
    overlaps = box_iou(boxes[:, 1:], detected[:, :4])
    matching = SimpleNamespace(iouv=IOUS)
    correct: torch.Tensor = BaseValidator.match_predictions(
        matching, detected[:, 5], boxes[:, 0], overlaps
    )
    return correct
