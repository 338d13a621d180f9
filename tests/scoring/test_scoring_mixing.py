"""MixUp and CutMix: whose loss is it, and does the score know who has been learned?"""

import pytest
import torch
from torch.nn import functional

from infobatch import scoring
from scoring_checks import assert_mean_is

CLASSES = 6


def mixed_targets(targets, partners, lam, smoothing=0.0):
    one_hot = functional.one_hot(targets, CLASSES).float()
    one_hot = one_hot * (1 - smoothing) + smoothing / CLASSES
    lam = torch.as_tensor(lam).reshape(-1, 1)
    return lam * one_hot + (1 - lam) * one_hot[partners]


PAIRINGS = {
    "flipped": lambda size: torch.arange(size).flip(0),
    "random": torch.randperm,
    "itself": torch.arange,
    "shifted": lambda size: torch.arange(size).roll(1),
}


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("size", [1, 2, 7, 8])
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_is_that_of_mixed_labels(pairing, size, by_sample, smoothing):
    partners = PAIRINGS[pairing](size)
    logits, targets = torch.randn(size, CLASSES), torch.randint(CLASSES, (size,))
    lam = torch.rand(size) if by_sample else 0.3
    soft = mixed_targets(targets, partners, lam, smoothing)
    assert_mean_is(
        lambda x: scoring.mixed_cross_entropy(x, targets, partners, lam, label_smoothing=smoothing),
        lambda x: functional.cross_entropy(x, soft),
        logits,
    )


@pytest.mark.parametrize("by_sample", [False, True])
def test_a_loss_has_the_terms_of_its_own_label(by_sample):
    size = 7
    for pairing in PAIRINGS.values():
        partners = pairing(size)
        logits, targets = torch.randn(size, CLASSES), torch.randint(CLASSES, (size,))
        lam = torch.rand(size) if by_sample else torch.full((size,), 0.3)
        losses = scoring.mixed_cross_entropy(logits, targets, partners, lam).losses
        log_p = logits.log_softmax(1)
        expected = torch.zeros(size)
        for image in range(size):
            owner, partner = image, int(partners[image])
            expected[owner] -= lam[image] * log_p[image, targets[owner]]
            expected[partner] -= (1 - lam[image]) * log_p[image, targets[partner]]
        torch.testing.assert_close(losses, expected)


def test_by_default_the_batch_is_flipped():
    logits, targets = torch.randn(7, CLASSES), torch.randint(CLASSES, (7,))
    ours = scoring.mixed_cross_entropy(logits, targets, lam=0.7)
    flipped = scoring.mixed_cross_entropy(logits, targets, torch.arange(7).flip(0), 0.7)
    assert torch.equal(ours.losses, flipped.losses)
    assert torch.equal(ours.scores, flipped.scores)


@pytest.mark.parametrize("random", [False, True])
def test_the_score_is_the_papers_turned_round(random):
    """A.3: P_i[y_i] + P_j[y_i]; a constant minus that where all classes differ."""
    logits, targets = torch.randn(6, CLASSES), torch.randperm(CLASSES)
    partners = torch.tensor([2, 3, 4, 5, 1, 0]) if random else torch.arange(6).flip(0)
    scores = scoring.mixed_cross_entropy(logits, targets, partners, 0.3).scores
    p = logits.softmax(1)
    for i in range(6):
        (j,) = (partners == i).nonzero().flatten().tolist()
        paper = p[i, targets[i]] + p[j, targets[i]]
        torch.testing.assert_close(scores[i], 1 - paper)


@pytest.mark.parametrize("size", [1, 7, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("by_sample", [False, True])
def test_what_is_learned_scores_zero(size, smoothing, by_sample):
    """Whoever is whose partner, of one class or of two: the mixed label itself is perfection."""
    for name, pairing in PAIRINGS.items():
        partners = pairing(size)
        targets = torch.randint(2, (size,))  # two classes only: many pairs of one class
        lam = torch.rand(size) if by_sample else torch.tensor(0.3)
        logits = mixed_targets(targets, partners, lam, smoothing).clamp_min(1e-30).log()
        scores = scoring.mixed_cross_entropy(
            logits, targets, partners, lam, label_smoothing=smoothing
        ).scores
        assert scores.abs().max() < 1e-6, name


@pytest.mark.parametrize("same", [False, True])
def test_what_is_not_learned_scores_one(same):
    """Of one class or of two, in a pair or alone: nothing of the class gives the same score."""
    targets = torch.tensor([0, 1, 2, 0 if same else 3, 4])
    partners = torch.tensor([3, 2, 1, 0, 4])
    logits = torch.full((5, CLASSES), -100.0)
    logits[:, 5] = 100.0
    scores = scoring.mixed_cross_entropy(logits, targets, partners, 0.3).scores
    torch.testing.assert_close(scores, torch.ones(5))


def test_a_hard_sample_beside_an_easy_one():
    """Sample 0 is never recognised, its partner always: only sample 0 scores high."""
    p = torch.tensor([[0.0, 0.3, 0.7], [0.0, 0.7, 0.3]]) + 1e-9
    scores = scoring.mixed_cross_entropy(p.log(), torch.tensor([0, 1]), None, 0.7).scores
    assert scores[0] == pytest.approx(1, abs=1e-6)
    assert scores[1] == pytest.approx(0, abs=1e-6)


def test_unmixed_images():
    logits, targets = torch.randn(5, CLASSES), torch.randint(CLASSES, (5,))
    for partners, lam in [(torch.arange(5), 0.4), (torch.randperm(5), 1.0)]:
        losses = scoring.mixed_cross_entropy(logits, targets, partners, lam).losses
        plain = functional.cross_entropy(logits, targets, reduction="none")
        torch.testing.assert_close(losses, plain)


def test_each_weight_meets_the_terms_of_its_own_label():
    """What "weights for mixed pairs" comes to: in the gradient of out_k stand w_k and w_partner."""
    logits = torch.randn(4, CLASSES, requires_grad=True)
    targets, partners = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    losses = scoring.mixed_cross_entropy(logits, targets, partners, 0.3).losses
    (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
    one_hot, p = functional.one_hot(targets, CLASSES), logits.detach().softmax(1)
    expected = 0.3 * weights[:, None] * (p - one_hot)
    expected += 0.7 * weights[partners][:, None] * (p - one_hot[partners])
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"partners": torch.tensor([0, 0, 1])}, ValueError, r"not a permutation of 0 to 2"),
        ({"partners": torch.tensor([0, 1])}, ValueError, r"partners of shape \(2,\), expected \(3"),
        ({"partners": torch.zeros(3)}, TypeError, r"partners of torch.float32, expected integers"),
        ({"lam": 1.5}, ValueError, r"got lam=1.5, expected a number from 0.0 to 1.0"),
        ({"lam": torch.ones(3, 1, 1, 1)}, ValueError, r"lam of shape \(3, 1, 1, 1\).*flatten\(\)"),
        ({"lam": None}, TypeError, r"got no lam, .* use cross_entropy\(\)"),
        ({"targets": torch.zeros(3, 5)}, ValueError, r"Pass the class indices from before mixing"),
        ({"logits": torch.zeros(3, 5, 2)}, ValueError, r"expected \(B, C\): one prediction"),
        ({"label_smoothing": 2}, ValueError, r"label_smoothing=2"),
    ],
)
def test_errors(change, error, text):
    arguments = {"logits": torch.zeros(3, 5), "targets": torch.zeros(3).long(), "lam": 0.5}
    with pytest.raises(error, match=r"mixed_cross_entropy\(\).*" + text):
        scoring.mixed_cross_entropy(**{**arguments, **change})
