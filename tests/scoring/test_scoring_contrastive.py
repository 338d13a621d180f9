"""CLIP's loss by pair."""

import pytest
import torch
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

from infobatch import scoring
from scoring_checks import assert_mean_is


def reference(images, texts, scale):
    images, texts = functional.normalize(images, dim=-1), functional.normalize(texts, dim=-1)
    return image_text_contrastive_loss(texts @ images.T * scale)


def test_beside_transformers_loss():
    images, texts, scale = torch.randn(6, 8), torch.randn(6, 8), torch.tensor(14.0)
    assert_mean_is(
        lambda x, y, s: scoring.contrastive(x, y, logit_scale=s), reference, images, texts, scale
    )
    assert_mean_is(
        lambda x, y: scoring.contrastive(x, y, temperature=0.5),
        lambda x, y: reference(x, y, 2.0),
        images,
        texts,
    )
    assert_mean_is(scoring.contrastive, lambda x, y: reference(x, y, 1 / 0.07), images, texts)
    assert_mean_is(
        lambda x, y: scoring.contrastive(x, y, temperature=0.5, normalise=False),
        lambda x, y: image_text_contrastive_loss(2 * y @ x.T),
        images,
        texts,
    )


def test_beside_transformers_model():
    config = CLIPConfig(
        text_config={
            "vocab_size": 20,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 8,
            "eos_token_id": 19,
            "bos_token_id": 0,
            "pad_token_id": 1,
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "patch_size": 4,
        },
        projection_dim=8,
    )
    model = CLIPModel(config)
    output = model(
        input_ids=torch.randint(20, (5, 6)),
        pixel_values=torch.randn(5, 3, 8, 8),
        return_loss=True,
    )
    result = scoring.contrastive(
        output.image_embeds, output.text_embeds, logit_scale=model.logit_scale.exp()
    )
    torch.testing.assert_close(result.losses.mean(), output.loss, atol=1e-6, rtol=1e-6)
    theirs = torch.autograd.grad(output.loss, model.logit_scale, retain_graph=True)
    ours = torch.autograd.grad(result.losses.mean(), model.logit_scale)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_a_row_is_the_mean_of_its_two_directions():
    images, texts = torch.randn(4, 8), torch.randn(4, 8)
    result = scoring.contrastive(images, texts, temperature=0.2)
    similarity = functional.cosine_similarity(images[:, None], texts[None], dim=-1) / 0.2
    for i in range(4):
        row, column = -similarity[i].log_softmax(0)[i], -similarity[:, i].log_softmax(0)[i]
        torch.testing.assert_close(result.scores[i], (row + column) / 2)


def test_the_negatives_are_the_batch():
    """What the docstring warns of, held so that it stays true to say so."""
    images, texts = torch.randn(4, 8), torch.randn(4, 8)
    whole = scoring.contrastive(images, texts).scores
    part = scoring.contrastive(images[:2], texts[:2]).scores
    assert (whole[:2] > part).all()
    assert "negatives are the batch" in scoring.contrastive.__doc__


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"image_embeddings": torch.zeros(8)},
            r"image_embeddings of shape \(8,\), expected \(B, D",
        ),
        ({"image_embeddings": torch.zeros(4, 2, 8)}, r"image_embeddings of shape \(4, 2, 8\)"),
        (
            {"text_embeddings": torch.zeros(3, 8)},
            r"text_embeddings of shape \(3, 8\), expected \(4",
        ),
        ({"temperature": 1.0, "logit_scale": 1.0}, r"both temperature and logit_scale"),
    ],
)
def test_errors(arguments, text):
    given = {"image_embeddings": torch.zeros(4, 8), "text_embeddings": torch.zeros(4, 8)}
    with pytest.raises(ValueError, match=r"contrastive\(\) got " + text):
        scoring.contrastive(**{**given, **arguments})
