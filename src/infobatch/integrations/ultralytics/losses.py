"""Ultralytics' losses image by image, without a copy of their code, which runs unchanged and is observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ultralytics.utils.loss import (
    E2ELoss,
    PoseLoss26,
    v8ClassificationLoss,
    v8DetectionLoss,
    v8OBBLoss,
    v8PoseLoss,
    v8SegmentationLoss,
)

from infobatch import PerSample
from infobatch.scoring import cross_entropy, detection
from infobatch.trainers import GRADIENT

# The gain of each part of a loss, among the settings of a training.
_GAINS = {
    "box_loss": "box",
    "cls_loss": "cls",
    "dfl_loss": "dfl",
    "l1_loss": "dfl",
    "seg_loss": "box",
    "sem_loss": "box",
    "pose_loss": "pose",
    "kobj_loss": "kobj",
    "rle_loss": "rle",
    "angle_loss": "angle",
}


class ImageLosses:
    """Ultralytics' loss image by image, for loops of one's own.

    ``ImageLosses(model.init_criterion())(preds, batch)`` returns one loss, score and size of the gradient
    per image; ``losses.mean()`` times the number of images is what the criterion returns. For models that
    detect objects, also with masks, key points or oriented boxes.

    Args:
        criterion: Ultralytics' own, of a model that ends in ``Detect``, ``Segment``, ``Pose`` or ``OBB``. Use it
            only through this object.

    Raises:
        TypeError: if it is the criterion of another model.
    """

    def __init__(self, criterion: Any) -> None:
        end_to_end = isinstance(criterion, E2ELoss)
        branches = (criterion.one2many, criterion.one2one) if end_to_end else (criterion,)
        self._criterion = criterion
        self._branches = [_branch(branch) for branch in branches]
        if end_to_end:
            self.update = criterion.update  # of the branches' gains, after each epoch

    def __call__(self, preds: Any, batch: dict[str, Any]) -> PerSample:
        """Compute the losses of a batch from what the model returned in training or evaluation mode."""
        if len(self._branches) == 1:
            outputs, gains = [self._branches[0].parse(preds)], [1.0]
        else:
            named = self._branches[0].parse(preds)
            outputs = [named["one2many"], named["one2one"]]
            gains = [self._criterion.o2m, self._criterion.o2o]
        for branch, output in zip(self._branches, outputs, strict=True):
            branch.measure(output, batch)
        return _sum([branch.per_image() for branch in self._branches], gains)

    def parts(self) -> dict[str, PerSample]:
        """Return the parts of the last batch's losses by the names that Ultralytics logs."""
        logged = self._branches[-1]
        return {name: logged.per_image(name) for name in logged.parts}

    def whole(self, loss: torch.Tensor, images: int) -> torch.Tensor:
        """Return what Ultralytics' criterion returns for a batch: here, the mean times its images.

        Args:
            loss: the (weighted) mean over the images.
            images: their number.

        Returns:
            The loss that is differentiated.
        """
        return loss * images


class ClassificationLosses:
    """The cross-entropy of each image, under the same interface as :class:`ImageLosses`."""

    def __init__(self, criterion: Any) -> None:
        if not isinstance(criterion, v8ClassificationLoss):
            raise _unknown(criterion, "v8ClassificationLoss")

    def __call__(self, preds: Any, batch: dict[str, Any]) -> PerSample:
        """Compute the losses of a batch from what the model returned in training or evaluation mode."""
        logits = preds[1] if isinstance(preds, (list, tuple)) else preds
        self._losses = cross_entropy(logits, batch["cls"])
        return self._losses

    def parts(self) -> dict[str, PerSample]:
        """Return the last batch's losses by the name that Ultralytics logs."""
        return {"loss": self._losses}

    def whole(self, loss: torch.Tensor, images: int) -> torch.Tensor:
        """Return what Ultralytics' criterion returns for a batch: here, the mean itself."""
        return loss


class _Branch:
    """Ultralytics' detection loss with the sums over each image beside those over the batch.

    Ultralytics computes the loss with its own code; two of its steps are observed. The class loss is known for
    each image. The box losses are added up inside, each multiplied by its target score: so their
    derivative with respect to a factor of an image's target scores is the image's own sum.

    Each part is a sum over the batch divided by its own number, such as the sum of target scores, or the
    number of assigned anchors. To be added up for the scores, the parts here are all to be divided by the
    sum of target scores; in a pruned epoch each divisor is weighted by itself.
    """

    def __init__(self, criterion: v8DetectionLoss) -> None:
        self._criterion = criterion
        self._bce, self._bbox_loss = criterion.bce, criterion.bbox_loss
        criterion.bce, criterion.bbox_loss = self._classes, self._boxes
        self.parse = criterion.parse_output
        self._gains = {name: getattr(criterion.hyp, _GAINS[name]) for name in criterion.loss_names}

    def measure(self, preds: Any, batch: dict[str, Any]) -> None:
        """Compute the loss of a batch, and remember its parts."""
        self._sums: dict[str, torch.Tensor] = {}
        self._counts_of: dict[str, torch.Tensor] = {}  # where they are not target scores
        self._criterion.loss(preds, batch)
        self._sums["cls_loss"] = self._classes_of.sum((1, 2))  # multiplied by class weights since
        none = torch.zeros_like(self._counts)
        self.parts = {name: self._sums.get(name, none) for name in self._criterion.loss_names}

    def per_image(self, *names: str) -> PerSample:
        """One loss per image: all of its parts, or those that are named."""
        parts = {name: self.parts[name] for name in names or self.parts}
        gains = {name: self._gains[name] for name in parts}
        whole = detection(parts, gains, counts=self._counts)
        divided = [
            (
                detection({name: parts[name]}, {name: gains[name]}, counts=self._counts).losses,
                counts,
            )
            for name, counts in self._counts_of.items()
            if name in parts
        ]
        return PerSample(*whole, whole.extras, whole.counts, divided)

    def _classes(self, *args: torch.Tensor) -> Any:
        self._classes_of = self._bce(*args)
        self._counts = args[1].sum((1, 2))  # of target scores; 0 if there are no boxes
        return self._classes_of

    def _boxes(self, *args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        target_scores, target_scores_sum = args[4:6]
        self._counts = target_scores.sum((1, 2))  # in their own precision
        factors = target_scores.new_ones(len(target_scores), 1, 1, requires_grad=True)
        box, dfl = self._bbox_loss(*args[:4], target_scores * factors, 1.0, *args[6:])
        last = "dfl_loss" if self._criterion.use_dfl else "l1_loss"
        self._sums |= {"box_loss": by_factor(box, factors), last: by_factor(dfl, factors)}
        return box / target_scores_sum, dfl / target_scores_sum

    def _add(self, name: str, sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Note a part that is divided by the sum of other counts; return the part of the batch."""
        divisor = counts.sum().clamp_min(1)
        self._sums[name] = sums * (self._counts.sum().clamp_min(1) / divisor)
        self._counts_of[name] = counts
        return sums.sum() / divisor


class _RotatedBranch(_Branch):
    """With the loss of the angle, whose weights are target scores, too."""

    def __init__(self, criterion: v8OBBLoss) -> None:
        super().__init__(criterion)
        self._angle_loss = criterion.calculate_angle_loss
        criterion.calculate_angle_loss = self._angles

    def _angles(
        self,
        pred_bboxes: torch.Tensor,
        target_bboxes: torch.Tensor,
        fg_mask: torch.Tensor,
        weight: torch.Tensor,
        target_scores_sum: torch.Tensor | float,
    ) -> torch.Tensor:
        factors = weight.new_ones(len(fg_mask), requires_grad=True)
        weighted = weight * factors[fg_mask.nonzero()[:, 0]]
        sums: torch.Tensor = self._angle_loss(pred_bboxes, target_bboxes, fg_mask, weighted, 1.0)
        self._sums["angle_loss"] = by_factor(sums, factors)
        return sums / target_scores_sum


class _MaskBranch(_Branch):
    """With the losses of masks: of the objects, image by image inside, and of the classes' areas."""

    def __init__(self, criterion: v8SegmentationLoss) -> None:
        super().__init__(criterion)
        self._of_objects = criterion.calculate_segmentation_loss
        self._of_image, self._of_areas = criterion.single_mask_loss, criterion.bcedice_loss
        criterion.calculate_segmentation_loss = self._objects
        criterion.single_mask_loss = self._objects_of_image
        criterion.bcedice_loss = self._areas

    def _objects(self, fg_mask: torch.Tensor, *args: Any) -> torch.Tensor:
        self._mask_sums: list[torch.Tensor] = []
        self._of_objects(fg_mask, *args)
        sums = self._mask_sums[0].new_zeros(len(fg_mask))
        sums = sums.index_put((fg_mask.any(1).nonzero()[:, 0],), torch.stack(self._mask_sums))
        return self._add("seg_loss", sums, fg_mask.sum(1))

    def _objects_of_image(self, *args: torch.Tensor) -> Any:
        self._mask_sums.append(self._of_image(*args))  # images without objects are left out
        return self._mask_sums[-1]

    def _areas(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        means = [
            self._of_areas(pred[row : row + 1], target[row : row + 1]) for row in range(len(pred))
        ]
        return self._add("sem_loss", torch.stack(means), torch.ones(len(means), device=pred.device))


class _PoseBranch(_Branch):
    """With the losses of key points: means over assigned anchors, taken here over each image's own."""

    def __init__(self, criterion: v8PoseLoss) -> None:
        super().__init__(criterion)
        self._key_points = criterion.calculate_keypoints_loss
        self._location, self._visibility = criterion.keypoint_loss, criterion.bce_pose
        criterion.calculate_keypoints_loss = self._remember_anchors
        criterion.keypoint_loss = lambda *args: self._mean("pose_loss", self._location, args)
        criterion.bce_pose = lambda *args: self._mean("kobj_loss", self._visibility, args)
        if isinstance(criterion, PoseLoss26) and criterion.rle_loss is not None:
            self._of_rows, self._of_points = criterion.calculate_rle_loss, criterion.rle_loss
            criterion.calculate_rle_loss, criterion.rle_loss = self._likelihood, self._count_points

    def _remember_anchors(self, masks: torch.Tensor, *args: Any) -> Any:
        self._anchors = masks.sum(1).tolist()  # of each image, in this order
        return self._key_points(masks, *args)

    def _mean(
        self, name: str, loss: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """The mean over all rows, from the means over each image's rows."""
        none = args[0].new_zeros(())
        pieces = zip(*(torch.split(arg, self._anchors) for arg in args), strict=True)
        sums = [loss(*rows) * len(rows[0]) if len(rows[0]) else none for rows in pieces]
        return self._add(name, torch.stack(sums), float_tensor(self._anchors, args[0]))

    def _likelihood(self, *args: torch.Tensor) -> torch.Tensor:
        """The mean over the visible key points, from the means over each image's."""
        none, sums, points = args[0].new_zeros(()), [], []
        for rows in zip(*(torch.split(arg, self._anchors) for arg in args), strict=True):
            self._points = 0  # of these that count; the loss is their mean
            mean = self._of_rows(*rows) if len(rows[0]) else none
            sums.append(mean * self._points)
            points.append(self._points)
        whole = self._add("rle_loss", torch.stack(sums), float_tensor(points, args[0]))
        self._sums["rle_loss"] = self._sums["rle_loss"] * (
            whole.detach() >= 0
        )  # Ultralytics clamps it
        return whole

    def _count_points(self, *args: torch.Tensor) -> Any:
        self._points = len(args[0])
        return self._of_points(*args)


def float_tensor(numbers: list[int], like: torch.Tensor) -> torch.Tensor:
    """Numbers on the device of another tensor, in a type that has them exactly."""
    return torch.tensor(numbers, dtype=torch.float32, device=like.device)


def by_factor(loss: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Each image's part of a sum to which the images' factors, all of them 1, are linear."""
    return torch.autograd.grad(loss, factors, create_graph=True)[0].flatten()


def _branch(criterion: Any) -> _Branch:
    """What observes this criterion."""
    for known, branch in _BRANCHES.items():
        if isinstance(criterion, known):
            return branch(criterion)
    raise _unknown(criterion, ", ".join(sorted(known.__name__ for known in _BRANCHES)))


# The first one that fits.
_BRANCHES: dict[type, Callable[[Any], _Branch]] = {
    v8OBBLoss: _RotatedBranch,
    v8SegmentationLoss: _MaskBranch,
    v8PoseLoss: _PoseBranch,
    v8DetectionLoss: _Branch,
}


def _unknown(criterion: Any, expected: str) -> TypeError:
    return TypeError(
        f"The model's criterion is {type(criterion).__name__}, expected one of these, whose losses are known "
        f"image by image: {expected}. Train this model with Ultralytics' own trainer."
    )


def _sum(branches: list[PerSample], gains: list[float]) -> PerSample:
    """The losses, scores and squared sizes of the branches, added up, each with divisors of its own."""
    if len(branches) == 1:
        return branches[0]
    pairs = list(zip(gains, branches, strict=True))
    parts = [(gain * part, counts) for gain, branch in pairs for part, counts in branch.parts]
    for gain, branch in pairs[1:]:  # what has the divisor of the first one is not listed
        rest = torch.stack([branch.losses, *(-part for part, _ in branch.parts)]).sum(0)
        assert branch.counts is not None  # they are target scores
        parts.append((gain * rest, branch.counts))
    losses = torch.stack([gain * branch.losses for gain, branch in pairs]).sum(0)
    scores = torch.stack([gain * branch.scores for gain, branch in pairs]).sum(0)
    squares = torch.stack([gain * branch.extras[GRADIENT].square() for gain, branch in pairs])
    return PerSample(losses, scores, {GRADIENT: squares.sum(0).sqrt()}, branches[0].counts, parts)
