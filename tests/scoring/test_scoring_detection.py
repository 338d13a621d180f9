"""Detection: two kinds of detectors' losses, written out small, and taken apart by image."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from infobatch import scoring
from scoring_checks import assert_finite_gradient, assert_scored_alone, assert_well_formed

CLASSES = 3
GRID = 4


class Detector(nn.Module):
    """In training mode, like torchvision's: images and targets in, a dict of scalar losses out.

    A one-stage detector on a grid: each cell says whether its centre is in a box (objectness, a mean
    over the cells of all images), which class and where its edges are (sums over the cells in boxes,
    divided by their number or by 1).
    """

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 1 + CLASSES + 4, 1)

    def forward(self, images, targets):
        output = self.head(torch.stack(images)).permute(0, 2, 3, 1).flatten(1, 2)
        objectness, classes, edges = output.split([1, CLASSES, 4], dim=2)
        centres = (torch.arange(GRID) + 0.5).repeat_interleave(GRID)
        centres = torch.stack([(torch.arange(GRID) + 0.5).repeat(GRID), centres], 1)
        parts = {"classifier": [], "box_reg": []}
        inside_any = []
        for image, target in enumerate(targets):
            boxes = target["boxes"]
            inside = (centres[:, None] > boxes[:, :2]) & (centres[:, None] < boxes[:, 2:])
            cell, box = inside.all(2).nonzero(as_tuple=True)
            inside_any.append(inside.all(2).any(1))
            parts["classifier"].append(
                functional.cross_entropy(
                    classes[image, cell], target["labels"][box], reduction="sum"
                )
            )
            parts["box_reg"].append(
                functional.smooth_l1_loss(edges[image, cell], boxes[box], reduction="sum")
            )
        foreground = torch.stack(inside_any)
        number = foreground.sum().clamp_min(1)
        return {
            "loss_classifier": torch.stack(parts["classifier"]).sum() / number,
            "loss_box_reg": torch.stack(parts["box_reg"]).sum() / number,
            "loss_objectness": functional.binary_cross_entropy_with_logits(
                objectness.squeeze(2), foreground.float()
            ),
        }


def images_and_targets():
    images = [torch.randn(3, GRID, GRID) for _ in range(4)]
    boxes = [
        torch.tensor([[0.0, 0.0, 2.0, 2.0]]),
        torch.empty(0, 4),  # an image without objects
        torch.tensor([[0.0, 0.0, 4.0, 2.0], [2.0, 2.0, 4.0, 4.0]]),
        torch.tensor([[1.0, 1.0, 3.0, 4.0]]),
    ]
    targets = [
        {"boxes": of_image, "labels": torch.randint(CLASSES, (len(of_image),))}
        for of_image in boxes
    ]
    return images, targets


def test_torchvision_style():
    """Called image by image: the list of loss dicts, with gradients."""
    model, (images, targets) = Detector(), images_and_targets()
    parts = [model([image], [target]) for image, target in zip(images, targets, strict=True)]
    result = scoring.detection(parts)
    assert_well_formed(result)
    expected = torch.stack([sum(part.values()) for part in parts])
    torch.testing.assert_close(result.losses, expected)
    assert_scored_alone(lambda i: scoring.detection(parts[i]), 4, result)
    theirs = torch.autograd.grad(expected.mean(), list(model.parameters()), retain_graph=True)
    ours = assert_finite_gradient(result, *model.parameters())
    torch.testing.assert_close(ours, theirs)
    # The image without objects is scored by its background alone.
    torch.testing.assert_close(result.scores[1], parts[1]["loss_objectness"].detach())


def test_one_image_is_what_the_detector_returns():
    model, (images, targets) = Detector(), images_and_targets()
    losses = model(images[:1], targets[:1])
    result = scoring.detection([losses])
    torch.testing.assert_close(result.losses.mean(), sum(losses.values()))


class Ultralytics:
    """The v8 detection loss as far as reductions go: sums over the batch / its target scores."""

    gains = {"box": 7.5, "cls": 0.5, "dfl": 1.5}  # noqa: RUF012

    def __init__(self, size=4, anchors=6, bins=5):
        self.size = size
        self.logits = torch.randn(size, anchors, CLASSES, requires_grad=True)
        self.boxes = torch.rand(size, anchors, 4, requires_grad=True)
        self.edges = torch.randn(size, anchors, 4, bins, requires_grad=True)
        self.foreground = torch.rand(size, anchors) < 0.5
        self.foreground[1] = False  # an image without objects
        self.foreground[0, 0] = True
        self.target_scores = torch.rand(size, anchors, CLASSES) * self.foreground[..., None]
        self.target_boxes = torch.rand(size, anchors, 4)
        self.target_edges = torch.rand(size, anchors, 4) * (bins - 1.01)

    def unreduced(self):
        """By anchor, not divided."""
        weight = self.target_scores.sum(-1)
        box = (self.boxes - self.target_boxes).abs().mean(-1) * weight
        cls = functional.binary_cross_entropy_with_logits(
            self.logits, self.target_scores, reduction="none"
        ).sum(-1)
        left = self.target_edges.long()
        share = self.target_edges - left
        log_p = self.edges.log_softmax(-1)
        dfl = -(
            log_p.gather(-1, left[..., None]).squeeze(-1) * (1 - share)
            + log_p.gather(-1, left[..., None] + 1).squeeze(-1) * share
        )
        return {"box": box, "cls": cls, "dfl": dfl.mean(-1) * weight}

    def loss(self):
        """What the trainer gets: loss.sum() * batch_size."""
        target_scores_sum = max(self.target_scores.sum().item(), 1)
        parts = self.unreduced()
        total = sum(self.gains[name] * parts[name].sum() / target_scores_sum for name in parts)
        return total * self.size

    def inputs(self):
        return self.logits, self.boxes, self.edges


def test_ultralytics_style():
    detector = Ultralytics()
    parts = {name: part.sum(1) for name, part in detector.unreduced().items()}
    counts = detector.target_scores.sum((1, 2))
    result = scoring.detection(parts, weights=detector.gains, counts=counts)
    assert_well_formed(result)
    ours = result.losses.mean() * detector.size
    torch.testing.assert_close(ours, detector.loss(), atol=1e-6, rtol=1e-6)
    theirs = torch.autograd.grad(detector.loss(), detector.inputs())
    torch.testing.assert_close(
        torch.autograd.grad(ours, detector.inputs(), retain_graph=True), theirs
    )
    assert_finite_gradient(result, *detector.inputs())

    def alone(i):
        part = {name: value[i] for name, value in parts.items()}
        return scoring.detection(part, weights=detector.gains, counts=counts[i])

    assert_scored_alone(alone, 4, result)
    torch.testing.assert_close(result.scores[1], 0.5 * parts["cls"][1].detach())


def test_a_batch_without_objects():
    detector = Ultralytics()
    detector.foreground[:] = False
    detector.target_scores.zero_()
    parts = {name: part.sum(1) for name, part in detector.unreduced().items()}
    result = scoring.detection(parts, weights=detector.gains, counts=torch.zeros(4))
    torch.testing.assert_close(result.losses.mean() * 4, detector.loss())
    assert_finite_gradient(result, *detector.inputs())
    assert result.scores.isfinite().all()


def test_less_than_one_target_in_the_batch():
    """Target scores are soft: a batch's may add up to less than 1, and are divided by 1 then."""
    detector = Ultralytics()
    detector.target_scores *= 0.5 / detector.target_scores.sum()
    parts = {name: part.sum(1) for name, part in detector.unreduced().items()}
    counts = detector.target_scores.sum((1, 2))
    result = scoring.detection(parts, weights=detector.gains, counts=counts)
    torch.testing.assert_close(result.losses.mean() * 4, detector.loss())


def test_an_image_lacks_a_part():
    loss = torch.tensor(2.0, requires_grad=True)
    result = scoring.detection([{"rpn": loss}, {"rpn": loss, "mask": loss * 3}])
    assert result.losses.tolist() == [2.0, 8.0]
    (gradient,) = torch.autograd.grad(result.losses.sum(), loss)
    assert gradient == 5


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.ones(3),), TypeError, r"got Tensor as parts, expected a mapping of names"),
        (({},), ValueError, r"got no parts"),
        (([],), ValueError, r"got no parts"),
        (({"box": torch.tensor(1.0)},), ValueError, r"'box' as a scalar of the whole .*scalar\(\)"),
        (({"box": torch.ones(2, 3)},), ValueError, r"'box' of shape \(2, 3\), expected \(2,\)"),
        (
            ({"box": torch.ones(2), "cls": torch.ones(3)},),
            ValueError,
            r"part 'cls' of shape \(3,\), expected \(2,\). Reduce each part",
        ),
        (({"box": torch.ones(2).long()},), TypeError, r"'box' of torch.int64, expected floating"),
        (({"box": [1.0]},), TypeError, r"got list as part 'box'"),
        (([{"box": torch.ones(2)}],), ValueError, r"'box' of shape \(2,\) for image 0, expected a"),
        (
            ({"box": torch.ones(2)}, {"dfl": 2.0}),
            ValueError,
            r"weights for \['dfl'\], expected names of the parts: \['box'\]",
        ),
    ],
)
def test_errors(arguments, error, text):
    with pytest.raises(error, match=r"detection\(\) got .*" + text.removeprefix("got ")):
        scoring.detection(*arguments)
    with pytest.raises(ValueError, match=r"counts of shape \(3,\), expected \(2,\)"):
        scoring.detection({"box": torch.ones(2)}, counts=torch.ones(3))
