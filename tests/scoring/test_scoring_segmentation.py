"""Segmentation: a batch-level loss, an image-level score, and ignored pixels in neither."""

import pytest
import torch
from torch.nn import functional

from infobatch import scoring
from scoring_checks import assert_finite_gradient, assert_mean_is, assert_scored_alone

WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.1])


def batch():
    logits, masks = torch.randn(5, 4, 6, 3), torch.randint(4, (5, 6, 3))
    masks[0, :4] = 255  # counted pixels differ by image
    masks[1] = 255
    masks[2, 0, 0] = 255
    return logits, masks


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_one_head(weight):
    logits, masks = batch()
    result = assert_mean_is(
        lambda x: scoring.segmentation(x, masks, weight=weight),
        lambda x: functional.cross_entropy(x, masks, weight=weight, ignore_index=255),
        logits,
    )
    assert_scored_alone(
        lambda i: scoring.segmentation(logits[i], masks[i], weight=weight), 5, result
    )
    by_pixel = functional.cross_entropy(
        logits, masks, weight=weight, ignore_index=255, reduction="none"
    )
    for image in (0, 2, 3, 4):
        counted = by_pixel[image][masks[image] != 255]
        torch.testing.assert_close(result.scores[image], counted.mean())
    assert result.scores[1].isnan()
    assert result.losses[1] == 0


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_auxiliary_heads(weight):
    logits, masks = batch()
    second, third = torch.randn_like(logits), torch.randn_like(logits)

    def reference(x, y, z):
        ce = [
            functional.cross_entropy(head, masks, weight=weight, ignore_index=255)
            for head in (x, y, z)
        ]
        return ce[0] + 0.4 * ce[1] + 0.1 * ce[2]

    def ours(x, y, z, masks=masks):
        return scoring.segmentation(x, masks, weight=weight, auxiliary=[(y, 0.4), (z, 0.1)])

    result = assert_mean_is(ours, reference, logits, second, third)
    assert_scored_alone(lambda i: ours(logits[i], second[i], third[i], masks[i]), 5, result)
    alone = [scoring.segmentation(head, masks, weight=weight).scores for head in (logits, second)]
    both = scoring.segmentation(logits, masks, weight=weight, auxiliary=((second, 0.4),)).scores
    torch.testing.assert_close(both, alone[0] + 0.4 * alone[1], equal_nan=True)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_ignored_pixels_change_nothing(weight):
    logits, masks = batch()
    other = torch.where((masks == 255).unsqueeze(1), torch.full_like(logits, 50.0), logits)
    ours, theirs = (scoring.segmentation(x, masks, weight=weight) for x in (logits, other))
    assert torch.equal(ours.losses, theirs.losses)
    torch.testing.assert_close(ours.scores, theirs.scores, equal_nan=True)


def test_a_batch_of_ignored_images():
    logits = torch.randn(2, 4, 3, 3, requires_grad=True)
    result = scoring.segmentation(logits, torch.full((2, 3, 3), 255), auxiliary=[(logits, 0.4)])
    (gradient,) = assert_finite_gradient(result, logits)
    assert gradient.eq(0).all()
    assert result.losses.eq(0).all()
    assert result.scores.isnan().all()


def test_masks_as_they_come_from_a_png():
    logits, masks = batch()
    ours = scoring.segmentation(logits, masks.to(torch.uint8)).losses
    assert torch.equal(ours, scoring.segmentation(logits, masks).losses)


def test_volumes():
    logits, masks = torch.randn(2, 4, 3, 3, 3), torch.randint(4, (2, 3, 3, 3))
    assert_mean_is(
        lambda x: scoring.segmentation(x, masks),
        lambda x: functional.cross_entropy(x, masks),
        logits,
    )


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"logits": torch.zeros(4, 6, 3)}, ValueError, r"expected \(B, C, H, W\): the batch"),
        (
            {"masks": torch.zeros(2, 1, 6, 3).long()},
            ValueError,
            r"masks beside logits of \(2, 4, 6, 3\) of shape \(2, 1, 6, 3\), expected \(2, 6, 3\)",
        ),
        ({"masks": torch.zeros(2, 6, 3)}, TypeError, r"masks of torch.float32, expected integers"),
        (
            {"auxiliary": [(torch.zeros(2, 4, 3, 3), 0.4)]},
            ValueError,
            r"beside auxiliary\[0\] of \(2, 4, 3, 3\) .*interpolate",
        ),
        (
            {"auxiliary": [torch.zeros(2, 4, 6, 3)]},
            TypeError,
            r"got Tensor as auxiliary\[0\], expected a pair \(logits, factor\)",
        ),
        ({"weight": torch.ones(3)}, ValueError, r"weight of shape \(3,\), expected \(4,\)"),
    ],
)
def test_errors(change, error, text):
    arguments = {"logits": torch.zeros(2, 4, 6, 3), "masks": torch.zeros(2, 6, 3).long()}
    with pytest.raises(error, match=r"segmentation\(\).*" + text):
        scoring.segmentation(**{**arguments, **change})
