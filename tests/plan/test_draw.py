"""The draw: exact counts, exact weights, uniform subsets, for any scores and any policy."""

from collections import Counter
from itertools import combinations
from math import comb, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from infobatch import MeanPrune, Plan, Policy, Pruner, QuantilePrune, RandomPrune, Samples, Strata
from infobatch.plan import draw_plan, fingerprint, keep_counts, whole_plan

policies = st.one_of(
    st.builds(MeanPrune, ratio=st.floats(0, 0.99)),
    st.builds(RandomPrune, ratio=st.floats(0, 0.99)),
    st.builds(
        lambda low, high, a, b: QuantilePrune(bands=((low, a), (high, b))),
        st.floats(0.01, 0.5),
        st.floats(0.51, 1),
        st.floats(0, 0.99),
        st.floats(0, 0.99),
    ),
)
scores_arrays = hnp.arrays(
    np.float32,
    st.integers(1, 300),
    elements=st.one_of(
        st.floats(-(2.0**100), 2.0**100, width=32), st.sampled_from([0.0, 1.0, float("nan")])
    ),
)


@settings(max_examples=300)
@given(scores_arrays, policies, st.integers(0, 2**64), st.integers(0, 1000))
def test_any_scores_any_policy(scores, policy, seed, epoch):
    strata = policy.strata(Samples(scores))
    plan = draw_plan(strata, seed=seed, epoch=epoch)
    order, weights = plan.order.numpy(), plan.weights.numpy()
    assert len(set(order.tolist())) == len(order), "no duplicates"
    assert order.min() >= 0, "none out of range"
    assert order.max() < len(scores), "none out of range"
    assert weights.sum() == pytest.approx(len(scores), rel=1e-12), "weights sum to N"
    sizes = np.bincount(strata.labels, minlength=len(strata.keep) + 1)
    kept = np.bincount(strata.labels[order], minlength=len(sizes))
    assert kept.tolist() == keep_counts(sizes, strata.keep).tolist(), "exactly k of n"
    for sample, weight in zip(order.tolist(), weights.tolist(), strict=True):
        label = strata.labels[sample]
        assert weight == (1.0 if label == 0 else sizes[label] / kept[label])
    again = draw_plan(strata, seed=seed, epoch=epoch)
    assert np.array_equal(again.codes, plan.codes), "determined by (seed, epoch)"


@pytest.mark.parametrize("change", [{"seed": 1, "epoch": 0}, {"seed": 0, "epoch": 1}])
def test_another_seed_or_epoch_gives_another_draw(change):
    strata = Strata(np.ones(1000, np.uint8), (0.5,))
    first = draw_plan(strata, seed=0, epoch=0)
    other = draw_plan(strata, **change)
    assert set(first.order.tolist()) != set(other.order.tolist())
    assert not np.array_equal(
        whole_plan(1000, seed=0, epoch=0).codes, whole_plan(1000, **change).codes
    )


@pytest.mark.parametrize("ratio", [0.5, 0.75, 0.3, 1 / 3, 0.9])
def test_every_subset_is_equally_likely(ratio):
    """Chi-square over all subsets of a stratum of 6, beside two samples that are always kept."""
    labels = np.array([0, 1, 1, 1, 0, 1, 1, 1], np.uint8)
    kept = round((1 - ratio) * 6)
    counts = Counter(
        tuple(sorted(set(draw_plan(Strata(labels, (1 - ratio,)), seed=s, epoch=3).order.tolist())))
        for s in range(6000)
    )
    expected = {tuple(sorted((0, 4, *c))) for c in combinations((1, 2, 3, 5, 6, 7), kept)}
    assert set(counts) == expected
    mean = 6000 / len(expected)
    chi_square = sum((counts[subset] - mean) ** 2 / mean for subset in expected)
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * sqrt(2 * freedom)


def test_every_order_is_equally_likely():
    counts = Counter(
        tuple(whole_plan(4, seed=seed, epoch=0).order.tolist()) for seed in range(6000)
    )
    assert len(counts) == 24
    chi_square = sum((count - 250) ** 2 / 250 for count in counts.values())
    assert chi_square < 23 + 5 * sqrt(46)


@pytest.mark.parametrize("ratio", [0.5, 0.75, 0.3])
def test_expected_gradient_is_the_full_gradient_by_enumeration(ratio):
    """Average the weighted gradient over all equally likely draws of a tiny problem."""
    scores = np.array([0.1, 0.2, 0.3, 0.35, 0.4, 2.0, 3.0], np.float32)
    strata = MeanPrune(ratio).strata(Samples(scores))
    plan = draw_plan(strata, seed=0, epoch=1)
    easy = np.flatnonzero(strata.labels)
    kept = len(plan) - (len(scores) - len(easy))
    weight = {int(i): float(w) for i, w in zip(plan.order, plan.weights, strict=True)}
    easy_weight = next(w for i, w in weight.items() if i in easy)
    gradients = np.random.default_rng(0).normal(size=(len(scores), 3))
    total = np.zeros(3)
    for subset in combinations(easy.tolist(), kept):
        hard = [i for i in range(len(scores)) if i not in easy]
        total += gradients[hard].sum(0) + easy_weight * gradients[list(subset)].sum(0)
    assert total / comb(len(easy), kept) == pytest.approx(gradients.sum(0), rel=1e-12)


def test_expected_gradient_is_the_full_gradient_by_z_test():
    """Over 400 draws of 5,000 samples, the weighted gradient's mean is the full one."""
    rng = np.random.default_rng(0)
    scores = rng.exponential(size=5000).astype(np.float32)
    gradient = scores.astype(np.float64) * rng.normal(1, 1, size=5000)
    strata = QuantilePrune().strata(Samples(scores))
    sums = []
    for epoch in range(400):
        plan = draw_plan(strata, seed=7, epoch=epoch)
        sums.append(float((plan.weights.numpy() * gradient[plan.order.numpy()]).sum()))
    z = (np.mean(sums) - gradient.sum()) / (np.std(sums, ddof=1) / sqrt(len(sums)))
    assert abs(z) < 4


def test_inclusion_probability_of_every_sample():
    """Each of 40 samples is kept k/n of the time: the largest of 40 deviations stays below 4.5 σ."""
    labels = np.array([1] * 25 + [2] * 15, np.uint8)
    strata = Strata(labels, (0.5, 0.25))
    kept = np.zeros(40)
    draws = 4000
    for seed in range(draws):
        kept[draw_plan(strata, seed=seed, epoch=0).order.numpy()] += 1
    p = np.where(labels == 1, round(0.5 * 25) / 25, round(0.25 * 15) / 15)
    assert np.abs((kept - draws * p) / np.sqrt(draws * p * (1 - p))).max() < 4.5


@pytest.mark.parametrize("size", [400, 200_000])
def test_many_strata_are_drawn_as_exactly_as_few(size):
    """Twenty strata are corrected together: each still keeps its number, every sample as often."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 21, size).astype(np.uint8)
    keep = tuple(np.linspace(0.05, 1, 20).tolist())
    strata = Strata(labels, keep)
    sizes = np.bincount(labels, minlength=21)
    targets = keep_counts(sizes, keep)
    draws = 600 if size == 400 else 3
    times = np.zeros(size)
    for seed in range(draws):
        plan = draw_plan(strata, seed=seed, epoch=1)
        order = plan.order.numpy()
        assert np.bincount(labels[order], minlength=21).tolist() == targets.tolist()
        assert plan.weights.sum().item() == pytest.approx(size, rel=1e-12)
        times[order] += 1
    chance = (targets / sizes)[labels]
    spread = np.sqrt(chance * (1 - chance) / draws)
    if size == 400:
        assert (np.abs(times / draws - chance) <= 5 * spread + 1e-9).all()


def test_blocks_do_not_show():
    """A plan over several blocks of samples keeps the exact counts in and across all of them."""
    size = 300_001
    labels = (np.arange(size) % 3).astype(np.uint8)
    plan = draw_plan(Strata(labels, (0.5, 0.25)), seed=0, epoch=0)
    order = plan.order.numpy()
    assert len(np.unique(order)) == len(order)
    sizes = np.bincount(labels)
    assert np.bincount(labels[order]).tolist() == keep_counts(sizes, (0.5, 0.25)).tolist()
    assert plan.codes.dtype == np.uint32
    thirds = np.histogram(order, bins=3, range=(0, size))[0] / len(order)
    assert np.abs(thirds - 1 / 3).max() < 0.01
    # The order is mixed through: early positions come from everywhere.
    assert abs(order[:1000].mean() / size - 0.5) < 0.05


def test_a_draw_shifts_little_when_few_scores_do():
    scores = np.random.default_rng(0).exponential(size=20_000).astype(np.float32)
    policy = QuantilePrune(bands=((0.5, 0.5),))
    before = policy.strata(Samples(scores))
    scores[:3] = 50.0
    after = policy.strata(Samples(scores))
    first, second = (draw_plan(s, seed=0, epoch=0).order.tolist() for s in (before, after))
    assert len(set(first) ^ set(second)) < 0.02 * len(first)
    crossed = set(np.flatnonzero(before.labels != after.labels).tolist())
    assert 0 < len(crossed) <= 6
    common = set(first) & set(second) - crossed
    assert [i for i in first if i in common] == [i for i in second if i in common]


def test_codes_widen_when_index_and_class_do_not_fit_32_bits():
    codes = np.array([(1 << 40) | 5, 2], np.uint64)
    plan = Plan(2**40, codes, 40, np.array([1.0, 2.0]))
    assert plan.order.tolist() == [5, 2]
    assert plan.weights.tolist() == [2.0, 1.0]


def test_plans_that_differ_in_one_sample_or_in_their_weights_are_told_apart():
    labels = np.zeros(60_000, np.uint8)
    labels[:30_000] = 1
    plan = draw_plan(Strata(labels, (0.5,)), seed=0, epoch=1)
    for sample in range(10):
        other = labels.copy()
        other[[sample, 30_000 + sample]] = 0, 1
        swapped = draw_plan(Strata(other, (0.5,)), seed=0, epoch=1)
        assert (fingerprint(swapped) == fingerprint(plan)) == np.array_equal(
            swapped.codes, plan.codes
        )
    unweighted = draw_plan(Strata(labels, (0.5,), weights="ones"), seed=0, epoch=1)
    assert np.array_equal(unweighted.codes, plan.codes)
    assert fingerprint(unweighted) != fingerprint(plan)


def test_thresholds_that_are_no_numbers_are_not_reported():
    scores = np.array([1, 2, 3, 4], np.float32)
    strata = QuantilePrune(bands=((0.5, 0.5), (1.0, 0.25))).strata(Samples(scores))
    assert strata.thresholds == (3.0,)
    assert strata.labels.tolist() == [2, 2, 1, 1]


def test_unseen_samples_are_kept_whatever_the_policy_says():
    class PruneEverything(Policy):
        def strata(self, samples):
            return Strata(np.ones(len(samples), np.uint8), (0.1,))

    pruner = Pruner(100, 10, policy=PruneEverything())
    for position, index in enumerate(pruner.sampler):
        if position == 50:
            break
        pruner.update(torch.tensor([float(index)]))
    pruner.set_epoch(1)
    unseen = torch.isnan(pruner.scores).nonzero().flatten().tolist()
    assert len(unseen) == 50
    weights = dict(zip(pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True))
    assert all(weights[sample] == 1.0 for sample in unseen)
    assert len(weights) == 55
