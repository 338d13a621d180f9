"""``extras["gradient"]`` of every scoring function against gradients that autograd computes sample by sample."""

import pytest
import torch
from torch.nn import functional

from infobatch import scoring

COUNT = 12


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def oracle(result, *outputs):
    """‖∂ loss_i / ∂ outputs‖ for every sample i, one backward pass each."""
    norms = []
    for loss in result.losses:
        gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
        norms.append(sum(gradient.square().sum() for gradient in gradients).sqrt())
    return torch.stack(norms)


def check(result, *outputs, within=1e-4):
    """The reported sizes are the true ones up to one factor for the whole batch."""
    sizes, true = result.extras["gradient"], oracle(result, *outputs)
    known = ~sizes.isnan()
    assert known.any()
    assert torch.equal(known, ~result.scores.isnan())
    factors = (sizes / true)[known & (true > 1e-7)]
    assert factors.max() / factors.min() < 1 + within
    assert not sizes.requires_grad


def free(*shape):
    return (2 * torch.randn(*shape)).requires_grad_()


def labels(*shape, classes=5):
    return torch.randint(classes, shape)


WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.1])


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(weight, smoothing):
    logits, targets = free(COUNT, 5), labels(COUNT)
    targets[3] = -100
    result = scoring.cross_entropy(logits, targets, weight=weight, label_smoothing=smoothing)
    if weight is None and not smoothing:
        assert not result.extras, "1 − exp(−loss) is the size"
    else:
        check(result, logits)


def test_soft_targets():
    logits = free(COUNT, 5)
    check(scoring.cross_entropy(logits, torch.randn(COUNT, 5).softmax(1)), logits)


def test_the_gradient_as_the_score_is_reported_as_the_size_as_well():
    logits, targets = free(COUNT, 5), labels(COUNT)
    check(scoring.cross_entropy(logits, targets, score="gradient"), logits)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_many_labels_by_their_own_part(weight):
    """Within √2 of the whole norm, which would take a second softmax over every pixel."""
    logits, targets = free(COUNT, 5, 6), labels(COUNT, 6)
    targets[3] = -100
    targets[4, 2:] = -100
    check(scoring.cross_entropy(logits, targets, weight=weight), logits, within=0.42)
    check(
        scoring.cross_entropy(logits, targets, weight=weight, label_smoothing=0.1), logits
    )  # exact


def test_segmentation():
    logits, other, masks = free(COUNT, 5, 4, 4), free(COUNT, 5, 4, 4), labels(COUNT, 4, 4)
    masks[2] = 255
    result = scoring.segmentation(logits, masks, auxiliary=[(other, 0.4)])
    check(result, logits, other, within=0.42)


def test_binary_cross_entropy():
    logits, targets = free(COUNT, 5), torch.rand(COUNT, 5)
    check(scoring.binary_cross_entropy(logits, targets), logits)
    result = scoring.binary_cross_entropy(logits, targets, weight=WEIGHT, pos_weight=WEIGHT.flip(0))
    check(result, logits)
    flat = free(COUNT)
    check(scoring.binary_cross_entropy(flat, torch.rand(COUNT) > 0.5), flat)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_focal(gamma, alpha):
    logits = free(COUNT, 5)
    targets = (torch.rand(COUNT, 5) > 0.5).float()
    check(scoring.focal(logits, targets, gamma=gamma, alpha=alpha), logits)
    classes = labels(COUNT)
    classes[1] = -100
    of_classes = WEIGHT if alpha else None
    check(scoring.focal(logits, classes, gamma=gamma, alpha=of_classes), logits, within=0.42)


def test_two_classes_of_focal_are_exact():
    logits, classes = free(COUNT, 2), labels(COUNT, classes=2)
    check(scoring.focal(logits, classes), logits)


def test_causal_lm():
    logits, tokens = free(COUNT, 7, 5), labels(COUNT, 7)
    tokens[2] = -100
    tokens[3, 4:] = -100
    check(scoring.causal_lm(logits, tokens), logits, within=0.42)
    boundaries = torch.tensor([0, 3, 8, 20, 7 * COUNT])
    result = scoring.causal_lm(logits, tokens, boundaries=boundaries)
    check(result, logits, within=0.42)


def test_longer_answers_have_larger_gradients():
    """The loss of a language model is a sum over tokens, so its mean alone says little."""
    logits, tokens = torch.zeros(2, 9, 5), torch.zeros(2, 9, dtype=torch.int64)
    tokens[1, 3:] = -100
    result = scoring.causal_lm(logits, tokens)
    long, short = result.extras["gradient"]
    assert result.scores[0] == result.scores[1]
    assert long / short == pytest.approx(2.0), "the root of 8 tokens over 2"


def test_masked_autoencoding():
    predictions, patches = free(COUNT, 6, 4), torch.randn(COUNT, 6, 4)
    mask = torch.rand(COUNT, 6) > 0.4
    mask[0] = False
    check(scoring.masked_autoencoding(predictions, patches, mask, normalise=True), predictions)


def test_regression():
    predictions, targets = free(COUNT, 3), torch.randn(COUNT, 3)
    check(scoring.mse(predictions, targets), predictions)
    check(scoring.mse(predictions, targets, scale=torch.tensor([1.0, 9.0, 0.1])), predictions)
    check(scoring.huber(predictions, targets, delta=0.5), predictions)
    check(scoring.quantile(predictions, targets, 0.9), predictions)
    several = free(COUNT, 3, 2)
    check(scoring.quantile(several, targets, [0.1, 0.8]), several)


def test_diffusion():
    prediction, noise = free(COUNT, 3, 4), torch.randn(COUNT, 3, 4)
    steps = torch.randint(1000, (COUNT,))
    check(scoring.diffusion(prediction, noise, steps), prediction)
    weights = torch.rand(COUNT) + 0.1
    check(scoring.diffusion(prediction, noise, steps, weights=weights), prediction)
    means = scoring.TimestepMeans(1000, bins=1)
    for _ in range(2):
        result = scoring.diffusion(prediction, noise, steps, timestep_means=means)
    assert torch.allclose(result.extras["gradient"], result.scores.sqrt()), (
        "relative to the timestep"
    )


def test_contrastive():
    """With respect to the similarities of its own row and column, within √2."""
    images, texts = torch.eye(COUNT), torch.eye(COUNT) + 0.3 * torch.randn(COUNT, COUNT)
    result = scoring.contrastive(images, texts, temperature=0.5)
    logits = functional.normalize(images, dim=1) @ functional.normalize(texts, dim=1).T / 0.5
    pairs = torch.eye(COUNT)
    rows, columns = logits.softmax(1) - pairs, logits.softmax(0) - pairs
    true = (rows.square().sum(1) + columns.square().sum(0)).sqrt()
    factors = result.extras["gradient"] / true
    assert factors.max() / factors.min() < 1.42


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixing(smoothing):
    logits, targets, partners = free(COUNT, 5), labels(COUNT), torch.randperm(COUNT)
    lam = torch.rand(COUNT)
    result = scoring.mixed_cross_entropy(logits, targets, partners, lam, label_smoothing=smoothing)
    alone = partners != torch.arange(COUNT)  # mixed with itself, its two parts would add up
    sizes, true = result.extras["gradient"], oracle(result, logits)
    assert torch.allclose(sizes[alone], true[alone], atol=1e-5)


def test_detection_goes_by_the_root_of_the_loss():
    parts = {"box": torch.tensor([4.0, 0.0]), "cls": torch.tensor([5.0, 1.0])}
    assert scoring.detection(parts).extras["gradient"].tolist() == [3.0, 1.0]
    counted = scoring.detection(parts, counts=torch.tensor([3.0, 0.0]))
    assert counted.extras["gradient"].tolist() == [3.0, 1.0], (
        "not divided: by the batch's count, as the loss"
    )
