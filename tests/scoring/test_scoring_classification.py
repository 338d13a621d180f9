"""Classification: the losses' mean is torch's own, class weights and all."""

import pytest
import torch
from torch.nn import functional

from infobatch import scoring
from scoring_checks import assert_finite_gradient, assert_mean_is, assert_scored_alone

WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.0, 2.5])


def batch(size=9, classes=5):
    return 3 * torch.randn(size, classes), torch.randint(classes, (size,))


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_indices(weight, smoothing, ignored, dtype):
    logits, targets = batch()
    logits = logits.to(dtype)
    if ignored:
        targets[[2, 5]] = -100
    options = {"weight": weight, "label_smoothing": smoothing}
    result = assert_mean_is(
        lambda x: scoring.cross_entropy(x, targets, **options),
        lambda x: functional.cross_entropy(
            x,
            targets,
            weight=None if weight is None else weight.to(dtype),
            label_smoothing=smoothing,
        ),
        logits,
    )
    assert result.losses.dtype == dtype
    assert_scored_alone(
        lambda i: scoring.cross_entropy(logits[i], targets[i], **options), 9, result
    )
    assert result.scores.isnan().sum() == 2 * ignored


def test_the_score_is_the_unreduced_loss():
    logits, targets = batch()
    scores = scoring.cross_entropy(logits, targets, weight=WEIGHT).scores
    expected = functional.cross_entropy(logits, targets, weight=WEIGHT, reduction="none")
    torch.testing.assert_close(scores, expected)


def gradient_norms(logits, targets, **options):
    """By autograd in float64: the root mean square over a sample's labels of its loss's gradient."""
    exact = logits.detach().double().requires_grad_()
    options["weight"] = None if options["weight"] is None else options["weight"].double()
    if targets.is_floating_point():
        targets, counts = targets.double(), targets[0, 0].numel()
    else:
        counts = (targets != -100).reshape(len(targets), -1).sum(1)  # 0 / 0 is NaN
    functional.cross_entropy(exact, targets, reduction="sum", **options).backward()
    return (exact.grad.flatten(1).square().sum(1) / counts).sqrt()


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_gradient_score_is_autograds(weight, smoothing, places, soft, dtype):
    logits = (3 * torch.randn(9, 5, *places)).to(dtype).requires_grad_()
    targets = torch.randn(9, 5, *places).softmax(1) if soft else torch.randint(5, (9, *places))
    if not soft:
        targets[2] = -100
        targets[5].view(-1)[:1] = -100
    options = {"weight": weight, "label_smoothing": smoothing}
    result = scoring.cross_entropy(logits, targets, **options, score="gradient")
    expected = gradient_norms(logits, targets, **options).float()
    torch.testing.assert_close(result.scores, expected, equal_nan=True, atol=1e-6, rtol=1e-5)
    plain = scoring.cross_entropy(logits, targets, **options)
    assert torch.equal(result.losses, plain.losses), "what is trained on stays the same"
    assert torch.equal(result.scores.isnan(), plain.scores.isnan())
    assert not result.scores.requires_grad
    assert_scored_alone(
        lambda i: scoring.cross_entropy(logits[i], targets[i], **options, score="gradient"),
        9,
        result,
    )


def test_the_gradient_score_is_softmax_minus_target():
    logits, targets = batch()
    result = scoring.cross_entropy(logits, targets, score="gradient")
    missed = logits.softmax(1) - functional.one_hot(targets, 5)
    torch.testing.assert_close(result.scores, missed.norm(dim=1))
    both_certain = torch.tensor([[100.0, -100.0], [-100.0, 100.0]])
    scores = scoring.cross_entropy(both_certain, torch.tensor([0, 0]), score="gradient").scores
    torch.testing.assert_close(scores, torch.tensor([0.0, 2**0.5]))


def test_another_ignore_index_and_small_integers():
    logits, targets = batch()
    targets[3] = 255
    assert_mean_is(
        lambda x: scoring.cross_entropy(x, targets.to(torch.uint8), ignore_index=255),
        lambda x: functional.cross_entropy(x, targets, ignore_index=255),
        logits,
    )


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("places", [(), (4,)])
def test_soft_targets(weight, smoothing, places):
    logits = torch.randn(6, 5, *places)
    targets = torch.randn(6, 5, *places).softmax(1)
    options = {"weight": weight, "label_smoothing": smoothing}
    result = assert_mean_is(
        lambda x: scoring.cross_entropy(x, targets, **options),
        lambda x: functional.cross_entropy(x, targets, **options),
        logits,
    )
    assert_scored_alone(
        lambda i: scoring.cross_entropy(logits[i], targets[i], **options), 6, result
    )


def test_a_label_for_each_place():
    logits, targets = torch.randn(4, 5, 7), torch.randint(5, (4, 7))
    targets[0], targets[1, :3] = -100, -100
    assert_mean_is(
        lambda x: scoring.cross_entropy(x, targets, weight=WEIGHT),
        lambda x: functional.cross_entropy(x, targets, weight=WEIGHT),
        logits,
    )


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_nothing_but_ignored_labels(weight):
    logits = torch.randn(3, 5, requires_grad=True)
    result = scoring.cross_entropy(logits, torch.full((3,), -100), weight=weight)
    (gradient,) = assert_finite_gradient(result, logits)
    assert result.losses.eq(0).all()
    assert gradient.eq(0).all()
    assert result.scores.isnan().all()


@pytest.mark.parametrize("weight", [None, torch.rand(4), torch.rand(6, 4)])
@pytest.mark.parametrize("pos_weight", [None, torch.tensor([1.0, 2.0, 0.5, 4.0])])
def test_multi_label(weight, pos_weight):
    logits, targets = torch.randn(6, 4), torch.randint(2, (6, 4))
    options = {"weight": weight, "pos_weight": pos_weight}
    result = assert_mean_is(
        lambda x: scoring.binary_cross_entropy(x, targets, **options),
        lambda x: functional.binary_cross_entropy_with_logits(x, targets.float(), **options),
        logits,
    )
    if weight is None or weight.dim() == 1:
        assert_scored_alone(
            lambda i: scoring.binary_cross_entropy(logits[i], targets[i], **options), 6, result
        )


def test_one_output():
    logits, targets = torch.randn(6), torch.rand(6) > 0.5
    result = assert_mean_is(
        lambda x: scoring.binary_cross_entropy(x, targets, pos_weight=torch.tensor(3.0)),
        lambda x: functional.binary_cross_entropy_with_logits(
            x, targets.float(), pos_weight=torch.tensor(3.0)
        ),
        logits,
    )
    assert len(result.losses) == 6


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("alpha", [None, 0.25, WEIGHT])
def test_focal_of_classes(gamma, alpha):
    logits, targets = batch()

    def written_out(x):
        p = x.softmax(1)[torch.arange(9), targets]
        factor = 1.0 if alpha is None else alpha if isinstance(alpha, float) else alpha[targets]
        return (factor * (1 - p) ** gamma * -p.log()).mean()

    result = assert_mean_is(
        lambda x: scoring.focal(x, targets, gamma=gamma, alpha=alpha), written_out, logits
    )
    assert_scored_alone(
        lambda i: scoring.focal(logits[i], targets[i], gamma=gamma, alpha=alpha), 9, result
    )


@pytest.mark.parametrize("alpha", [None, 0.25])
def test_focal_of_multi_hot_targets(alpha):
    logits, targets = torch.randn(6, 4), torch.randint(2, (6, 4)).float()

    def as_torchvision_defines_it(x):
        p = x.sigmoid()
        ce = functional.binary_cross_entropy_with_logits(x, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        loss = ce * (1 - p_t) ** 2
        if alpha is not None:
            loss = (alpha * targets + (1 - alpha) * (1 - targets)) * loss
        return loss.mean()

    result = assert_mean_is(
        lambda x: scoring.focal(x, targets, alpha=alpha), as_torchvision_defines_it, logits
    )
    assert_scored_alone(lambda i: scoring.focal(logits[i], targets[i], alpha=alpha), 6, result)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("multi_hot", [False, True])
def test_focal_is_finite_at_certainty(gamma, multi_hot):
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0]]) if multi_hot else torch.tensor([0, 0])
    result = scoring.focal(logits, targets, gamma=gamma)
    assert_finite_gradient(result, logits)
    assert result.scores[0] == 0
    assert result.scores[1] > 100


def test_focal_ignores_labels():
    logits = torch.randn(3, 5, requires_grad=True)
    targets = torch.tensor([1, -100, 2])
    result = scoring.focal(logits, targets, alpha=WEIGHT)
    expected = scoring.focal(logits[[0, 2]], targets[[0, 2]], alpha=WEIGHT)
    torch.testing.assert_close(result.losses.mean(), expected.losses.mean())
    assert result.scores.isnan().tolist() == [False, True, False]
    assert_finite_gradient(result, logits)


LOGITS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: scoring.cross_entropy(torch.zeros(3), torch.tensor(1)),
            ValueError,
            r"cross_entropy\(\) got logits of shape \(3,\), expected \(B, C\): the batch comes first",
        ),
        (
            lambda: scoring.cross_entropy([1.0], torch.tensor(1)),
            TypeError,
            r"cross_entropy\(\) got list as logits, expected a tensor",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS.long(), torch.zeros(4).long()),
            TypeError,
            r"logits of torch.int64, expected floating point",
        ),
        (
            lambda: scoring.cross_entropy(torch.zeros(0, 3), torch.zeros(0).long()),
            ValueError,
            r"no samples. For a batch without samples call skip\(\)",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS, torch.zeros(5).long()),
            ValueError,
            r"got targets of shape \(5,\), expected \(4,\). Pass class indices .* shape \(4, 3\)",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS, 1),
            TypeError,
            r"got int as targets, expected a tensor of shape \(4,\)",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS, torch.zeros(4)),
            TypeError,
            r"got targets of torch.float32, expected integers. Pass class indices",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS, LOGITS.long()),
            TypeError,
            r"int64 in the shape of the logits, expected probabilities. .* targets.float\(\)",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS, torch.zeros(4).long(), weight=torch.ones(4)),
            ValueError,
            r"got weight of shape \(4,\), expected \(3,\). Pass one weight per class",
        ),
        (
            lambda: scoring.cross_entropy(LOGITS, torch.zeros(4).long(), score="norm"),
            ValueError,
            r"cross_entropy\(score=…\) got 'norm', expected 'loss' or 'gradient' \(the size of",
        ),
        (
            lambda: scoring.binary_cross_entropy(torch.zeros(4, 1), torch.zeros(4)),
            ValueError,
            r"binary_cross_entropy\(\) got targets of shape \(4,\), expected \(4, 1\)",
        ),
        (
            lambda: scoring.focal(LOGITS, torch.zeros(4)),
            ValueError,
            r"focal\(\) got targets of shape \(4,\), expected \(4, 3\). Multi-hot targets",
        ),
        (
            lambda: scoring.focal(LOGITS, torch.zeros(4).long(), alpha=torch.ones(2)),
            ValueError,
            r"focal\(alpha=…\) got weight of shape \(2,\), expected \(3,\)",
        ),
        (
            lambda: scoring.focal(torch.zeros(4), torch.zeros(4).long()),
            ValueError,
            r"focal\(\) got logits of shape \(4,\), expected \(B, C\)",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
