"""The noise rule against a bisection over sorted samples; the estimate and the bound for every rule."""

import numpy as np
import pytest
import torch

import infobatch
from infobatch.plan import Strata
from infobatch.plan.draw import keep_counts
from infobatch.policies import POLICIES, ImportancePrune, NoisePrune
from infobatch.policies.gradient import added_noise, gradient_size, limit_noise, squares_by_stratum
from infobatch.policies.proportional import Histogram
from remembered import kept_by, losses_by_epoch, samples_after

pytestmark = [
    pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning"),
    pytest.mark.filterwarnings(r"ignore:refresh\(\) was not called"),
]
SIZE = 20_000


def sizes_of(losses, gradient):
    """What stands in for the gradient, sample by sample."""
    plain = [max(float(loss), 0.0) for loss in losses]
    if gradient == "cross_entropy":
        return np.array([1 - np.exp(-loss) for loss in plain])
    return np.array([loss**0.5 if gradient == "root" else loss for loss in plain])


def probabilities(g, tau, floor, rank_by=None):
    """min(1, max(floor, c g)) with the c for which Σ g²/p / Σ g² − 1 is tau, by bisection."""
    rank_by = g if rank_by is None else rank_by
    low, high = 1e-9, 1e9
    for _ in range(200):
        c = np.sqrt(low * high)
        p = np.clip(c * rank_by, floor, 1)
        low, high = (c, high) if (g**2 / p).sum() / (g**2).sum() - 1 > tau else (low, c)
    return np.clip(high * rank_by, floor, 1)


@pytest.mark.parametrize("gradient", ["cross_entropy", "root", "score"])
@pytest.mark.parametrize(("tau", "floor"), [(0.05, 0.1), (0.1, 0.25), (0.2, 0.1), (0.5, 0.01)])
def test_probabilities_add_tau_and_are_proportional_to_the_gradient(gradient, tau, floor):
    losses = losses_by_epoch(1, SIZE)
    policy = NoisePrune(tau, floor=floor, smoothing=0.0, gradient=gradient)
    strata = policy.strata(samples_after(policy, losses))
    g = sizes_of(losses[0], gradient)
    p = np.array([1.0, *strata.keep])[strata.labels]
    assert (g**2 / p).sum() / (g**2).sum() - 1 == pytest.approx(tau, rel=0.03)
    expected = probabilities(g, tau, floor)
    assert p == pytest.approx(expected, abs=0.02)
    assert p.mean() == pytest.approx(expected.mean(), rel=0.01)
    assert p.min() >= floor - 1e-9


@pytest.mark.parametrize("gradient", ["cross_entropy", "root", "score"])
def test_the_size_of_the_gradient_is_exact_to_float32(gradient):
    """From the smallest normal number to the largest, with what has no such reading."""
    rng = np.random.default_rng(0)
    scores = np.exp2(rng.uniform(-126, 127, 20_000)).astype(np.float32)
    scores = np.concatenate([scores, rng.uniform(0, 20, 20_000).astype(np.float32)])
    plain = scores.astype(np.float64)
    exact = {"cross_entropy": -np.expm1(-plain), "root": np.sqrt(plain), "score": plain}[gradient]
    sizes = gradient_size(scores, gradient)
    assert sizes.dtype == np.float32
    assert np.abs(sizes / exact - 1).max() < 4 * np.finfo(np.float32).eps
    special = np.array([0.0, -0.0, -1e-30, -3.5, np.nan, 1e-45], np.float32)
    before = special.copy()
    result = gradient_size(special, gradient)
    assert result[:4].tolist() == [0, 0, 0, 0]
    assert np.isnan(result[4])
    assert 0 <= result[5] <= np.sqrt(special[5])
    assert special.tobytes() == before.tobytes(), "the scores stay as they are"


@pytest.mark.parametrize("gradient", ["cross_entropy", "root", "score"])
def test_bins_of_scores_are_as_good_as_a_gradient_for_each_sample(gradient):
    scores = losses_by_epoch(1, SIZE)[0]
    scores[::7], scores[1], scores[2] = np.nan, -1.0, -0.0
    samples = infobatch.Samples(scores)
    sizes = gradient_size(scores, gradient)
    by_score, by_size = Histogram.of_scores(samples, gradient), Histogram.of(sizes, sizes, samples)
    for name in ("counts", "masses", "squares"):
        first, second = getattr(by_score, name).sum(), getattr(by_size, name).sum()
        assert first == pytest.approx(second, rel=1e-3), name
    assert by_score.total_mass == by_size.total_mass == SIZE
    known = ~np.isnan(scores)
    bins = np.searchsorted(by_score.bins, by_score.codes[known])
    result = by_score.values[bins]
    assert result == pytest.approx(sizes[known], rel=0.005, abs=1e-30)


def two_kinds(size, rng):
    """Nine in ten are learned; the others are so hard that they must not share a stratum with them."""
    return np.where(rng.random(size) < 0.9, 1e-3 * rng.exponential(size=size), 2.0)


@pytest.mark.parametrize("tau", [0.1, 0.2])
@pytest.mark.parametrize("size", [3, 10, 40, 100, 300, 1000])
@pytest.mark.parametrize(
    "draw", [lambda size, rng: rng.exponential(size=size), two_kinds], ids=["one kind", "two kinds"]
)
def test_few_samples_do_not_add_more_than_tau(tau, size, draw):
    """Neither by the shares nor by the whole samples that an epoch draws."""
    for seed in range(10):
        losses = np.append(draw(size - 1, np.random.default_rng(seed)), 2.0).astype(np.float32)
        policy = NoisePrune(tau)
        plan = infobatch.Pruner(size, 8, policy=policy, initial_scores=losses).plan
        g = sizes_of(losses, "cross_entropy")
        strata = policy.strata(infobatch.Samples(losses))
        p = np.array([1.0, *strata.keep])[strata.labels]
        sizes = np.bincount(strata.labels, minlength=len(strata.keep) + 1)
        realised = (keep_counts(sizes, strata.keep) / np.maximum(sizes, 1))[strata.labels]
        assert (g**2 / p).sum() / (g**2).sum() - 1 <= 1.06 * tau
        assert (g**2 / realised).sum() / (g**2).sum() - 1 <= 1.06 * tau
        assert plan.added_noise <= 1.06 * tau
        if size >= 100:
            assert len(plan) < size, "and it prunes"


def test_a_floor_that_is_reached_adds_less_than_tau():
    losses = losses_by_epoch(1, SIZE)
    policy = NoisePrune(tau=100.0, floor=0.25, smoothing=0.0)
    strata = policy.strata(samples_after(policy, losses))
    assert np.array([1.0, *strata.keep])[strata.labels] == pytest.approx(np.full(SIZE, 0.25))


def test_without_noise_nothing_is_pruned_and_equal_losses_are_pruned_alike():
    losses = losses_by_epoch(1, SIZE)
    none = NoisePrune(tau=0.0, smoothing=0.0)
    assert len(kept_by(none.strata(samples_after(none, losses)))[0]) == SIZE
    policy = NoisePrune(tau=0.25, smoothing=0.0)
    kept, weights = kept_by(policy.strata(samples_after(policy, np.full((1, SIZE), 0.5))))
    assert len(kept) == pytest.approx(SIZE / 1.25, rel=0.01), "Σ 1/p − 1 = 0.25"
    assert max(weights) == pytest.approx(1.25, rel=0.02)


def test_age_lets_a_sample_count_for_more():
    epochs = np.full((4, SIZE), np.nan, np.float32)
    epochs[0, ::2] = epochs[3, 1::2] = 0.5
    policy = NoisePrune(tau=0.3, floor=0.01, smoothing=0.0, aging=0.5)
    strata = policy.strata(samples_after(policy, epochs))
    p = np.array([1.0, *strata.keep])[strata.labels]
    assert p[0] / p[1] == pytest.approx(min(2.5, 1 / p[1]), rel=0.02), "three epochs longer ago"
    g = sizes_of(np.full(SIZE, 0.5), "cross_entropy")
    expected = probabilities(g, 0.3, 0.01, g * np.where(np.arange(SIZE) % 2, 1.0, 2.5))
    assert p == pytest.approx(expected, abs=0.02)


def test_smoothing_ranks_by_the_average():
    epochs = losses_by_epoch(3, SIZE)
    policy = NoisePrune(0.1, smoothing=0.6)
    average = 0.6 * (0.6 * epochs[0] + 0.4 * epochs[1]) + 0.4 * epochs[2]
    plain = NoisePrune(0.1, smoothing=0.0)
    smoothed = policy.strata(samples_after(policy, epochs))
    expected = plain.strata(samples_after(plain, [average]))
    assert (smoothed.labels == expected.labels).mean() > 0.999


def test_importance_is_the_same_rule_with_a_number_instead_of_a_noise():
    losses = losses_by_epoch(1, SIZE)
    noise = NoisePrune(0.1, floor=0.2, smoothing=0.0)
    strata = noise.strata(samples_after(noise, losses))
    p = np.array([1.0, *strata.keep])[strata.labels]
    policy = ImportancePrune(1 - p.mean(), floor=0.2, smoothing=0.0)
    same = policy.strata(samples_after(policy, losses))
    assert np.array([1.0, *same.keep])[same.labels] == pytest.approx(p, abs=0.02)


@pytest.mark.parametrize("rule", [NoisePrune, ImportancePrune])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"floor": 0},
            r"\(floor=…\) got 0, expected a number > 0 and <= 1: the smallest probability",
        ),
        ({"smoothing": 1}, r"\(smoothing=…\) got 1, expected a number in \[0, 1\)"),
        ({"aging": -1}, r"\(aging=…\) got -1, expected a number >= 0"),
        ({"gradient": "norm"}, r"\(gradient=…\) got 'norm', expected 'cross_entropy'"),
    ],
)
def test_errors(rule, options, text):
    with pytest.raises(ValueError, match=rule.__name__ + text):
        rule(**options)


def test_error_of_tau():
    with pytest.raises(ValueError, match=r"NoisePrune\(tau=…\) got -0.1, expected a number >= 0"):
        NoisePrune(-0.1)


# The noise of any rule.


def trained(name, epochs=None, size=300, **options):
    epochs = epochs or 6 + POLICIES[name]().first_epoch
    options = {"labels": np.arange(size) % 5, "delta": 1.0, **options}
    pruner = infobatch.Pruner(size, epochs, policy=name, **options)
    losses = np.random.default_rng(0).exponential(size=size)
    losses[: size // 4] *= 1e-3
    for epoch in range(epochs):
        rng = np.random.default_rng(epoch)
        now = losses * rng.lognormal(sigma=0.3, size=size) * (1 + np.arange(size) % 2)
        now[size // 2 :] = losses[size // 2 :]  # half of them do not move
        for index in pruner.batch_sampler(size):
            pruner.update(torch.from_numpy(now.astype(np.float32))[index])
    return pruner


@pytest.mark.parametrize("gradient", ["cross_entropy", "root", "score"])
def test_the_estimate_is_the_sum_over_samples(gradient):
    rng = np.random.default_rng(0)
    scores = rng.exponential(size=500).astype(np.float32)
    scores[::9] = np.nan
    labels = rng.integers(0, 4, 500).astype(np.uint8)
    labels[::9] = 0
    keep, weights = (0.2, 0.5, 1.0), (3.0, 1.0, 1.5)
    g = np.nan_to_num(gradient_size(scores, gradient).astype(float))
    for given, w in (("inverse", 1 / np.array(keep)), ("ones", np.ones(3)), (weights, weights)):
        strata = Strata(labels, keep, given)
        squares = squares_by_stratum(strata, infobatch.Samples(scores), gradient)
        p = np.array([1.0, *keep])[labels]
        weight = np.array([1.0, *w])[labels]
        # E (1 − weight × kept)², sample by sample
        deviation = p * (1 - weight) ** 2 + (1 - p)
        expected = (g**2 * deviation).sum() / (g**2).sum()
        assert added_noise(strata, squares) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_every_epoch_reports_its_noise_and_it_is_logged(name):
    savings = trained(name).savings
    noises = [epoch.added_noise for epoch in savings.epochs]
    assert noises[0] == 0
    assert (max(noises) > 0) == (name != "none")
    assert savings.as_dict()["infobatch/added_noise"] == noises[-1]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("bound", [0.0, 0.02])
def test_a_bound_holds_for_every_rule(name, bound):
    pruner = trained(name, max_noise=bound)
    free = trained(name)
    assert all(epoch.added_noise <= bound + 1e-9 for epoch in pruner.savings.epochs)
    if bound == 0:
        return
    if max(epoch.added_noise for epoch in free.savings.epochs) > bound:
        assert pruner.savings.saved < free.savings.saved, "it prunes less by itself"
    else:
        assert pruner.savings == free.savings, "and otherwise what it did"


def test_a_bound_of_nothing_keeps_all_weights_at_1():
    for weights in ("inverse", "ones", (2.0, 3.0)):
        strata = Strata(np.array([1, 2, 2, 1, 0], np.uint8), (0.5, 0.25), weights)
        limited = limit_noise(strata, np.ones(3), 0.0)
        assert limited.keep == (1.0, 1.0)
        assert limited.weights == ((1.0, 1.0) if isinstance(weights, tuple) else weights)


def test_error_of_the_bound():
    with pytest.raises(
        ValueError, match=r"max_noise got -1, expected a number >= 0: the noise that"
    ):
        infobatch.Pruner(10, 3, max_noise=-1)


def test_the_histogram_has_only_bins_with_samples():
    """So that sums over them are short, and the same for any number of BLAS threads."""
    scores = np.random.default_rng(0).lognormal(0, 2, size=100_000).astype(np.float32)
    scores[::7] = np.nan
    histogram = Histogram.of_scores(infobatch.Samples(scores), "cross_entropy")
    assert np.array_equal(histogram.bins, np.unique(histogram.codes[~np.isnan(scores)]))
    assert histogram.counts.sum() == np.isfinite(scores).sum()
    assert len(histogram.bins) < 5_000, "OpenBLAS divides sums of more than 10,000 terms"
    strata = histogram.strata(slope=0.5, floor=0.1, squares=histogram.squares)
    assert not strata.labels[::7].any(), "what has no score is kept"
    assert strata.labels[~np.isnan(scores)].all()
