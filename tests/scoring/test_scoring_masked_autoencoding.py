"""Masked autoencoding, beside transformers' own model."""

import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from infobatch import scoring
from scoring_checks import assert_finite_gradient, assert_mean_is, assert_scored_alone


@pytest.mark.parametrize("normalise", [False, True])
def test_beside_transformers(normalise):
    torch.manual_seed(0)
    config = ViTMAEConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
        image_size=16,
        patch_size=4,
        norm_pix_loss=normalise,
    )
    model = ViTMAEForPreTraining(config)
    pixels = torch.randn(3, 3, 16, 16)
    output = model(pixels)
    result = scoring.masked_autoencoding(
        output.logits, model.patchify(pixels), output.mask, normalise=normalise
    )
    torch.testing.assert_close(result.losses.mean(), output.loss, atol=1e-6, rtol=1e-6)
    theirs = torch.autograd.grad(output.loss, model.decoder.decoder_pred.weight, retain_graph=True)
    ours = torch.autograd.grad(result.losses.mean(), model.decoder.decoder_pred.weight)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    # Every image has equally many hidden patches: the score is the loss.
    torch.testing.assert_close(result.scores, result.losses.detach())


@pytest.mark.parametrize("normalise", [False, True])
def test_masks_of_different_sizes(normalise):
    predictions, patches = torch.randn(4, 6, 5), torch.randn(4, 6, 5) * 3 + 1
    mask = torch.tensor([[1] * 6, [1, 0, 0, 0, 0, 0], [0] * 6, [0, 1, 1, 0, 0, 1]])

    def written_out(x):
        target = patches
        if normalise:
            mean, var = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
            target = (patches - mean) / (var + 1e-6) ** 0.5
        return ((x - target) ** 2).mean(-1)[mask.bool()].mean()

    def ours(x, patches=patches, mask=mask):
        return scoring.masked_autoencoding(x, patches, mask, normalise=normalise)

    result = assert_mean_is(ours, written_out, predictions)
    assert_scored_alone(lambda i: ours(predictions[i], patches[i], mask[i]), 4, result)
    assert result.scores.isnan().tolist() == [False, False, True, False]
    assert result.losses[2] == 0
    assert torch.equal(ours(predictions, mask=mask.bool()).losses, ours(predictions).losses)


def test_nothing_hidden():
    predictions = torch.randn(2, 3, 4, requires_grad=True)
    result = scoring.masked_autoencoding(predictions, torch.ones(2, 3, 4), torch.zeros(2, 3))
    (gradient,) = assert_finite_gradient(result, predictions)
    assert gradient.eq(0).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"predictions": torch.zeros(6, 5)},
            r"predictions of shape \(6, 5\), expected \(B, L, D\)",
        ),
        ({"patches": torch.zeros(2, 3, 16, 16)}, r"patches of shape .*model.patchify\("),
        ({"mask": torch.zeros(2, 6, 5)}, r"mask of shape \(2, 6, 5\), expected \(2, 6\)"),
    ],
)
def test_errors(change, text):
    arguments = {
        "predictions": torch.zeros(2, 6, 5),
        "patches": torch.zeros(2, 6, 5),
        "mask": torch.zeros(2, 6),
    }
    with pytest.raises(ValueError, match=r"masked_autoencoding\(\) got " + text):
        scoring.masked_autoencoding(**{**arguments, **change})
