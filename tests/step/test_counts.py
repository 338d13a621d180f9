"""Losses that are divided by tokens, pixels or target scores: in a pruned epoch, so is the estimate.

All data train on sum(s) / sum(t) of each batch. Weighted samples have to estimate both sums, because a rule may
keep the samples with a large t: mean(w) * sum(w * s) / sum(w * t), where mean(w) makes up for fewer batches.
"""

import itertools

import numpy as np
import pytest
import torch

import infobatch
from infobatch.per_sample import GRADIENT

SIZE = 6
COUNTS = np.array([1.0, 2.0, 9.0, 12.0, 3.0, 2.0])
SLOPES = COUNTS[:, None] * [[1, 0.2], [0.8, 0.1], [1.1, 0.3], [0.9, 0.25], [1.3, 0.3], [1.2, 0.15]]
SCORES = [0.1, 0.2, 0.9, 1.5, 0.3, 0.15]  # large where the counts are, as with objects in images


def samples_of(index, parameters, counted=True, counts=COUNTS, slopes=SLOPES):
    """Losses as scoring returns them: a sample's part of sum(s) / sum(t), times the batch size."""
    own = torch.tensor(counts)[index]
    sums = torch.tensor(slopes)[index] @ parameters
    losses = sums * (len(index) / own.sum().clamp_min(1e-9))
    return infobatch.PerSample(losses, losses.detach(), counts=own if counted else None)


def slow_gradient(index, weights, counts=COUNTS, slopes=SLOPES):
    """mean(w) * sum(w * s) / sum(w * t), in loops; the gradient of s is its slope."""
    above, below, total = np.zeros(slopes.shape[1]), 0.0, 0.0
    for sample, weight in zip(index, weights, strict=True):
        above = above + weight * slopes[sample]
        below += weight * counts[sample]
        total += weight
    return total / len(index) * above / below


def pruned(seed, **options):
    scores = torch.tensor(SCORES)
    return infobatch.Pruner(
        SIZE, 4, policy="mean", delta=1.0, seed=seed, initial_scores=scores, **options
    )


def gradient_of(loss, parameters):
    return torch.autograd.grad(loss, parameters)[0].numpy()


def parameters_of():
    return torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)


def by_position(pruner, index, samples):
    return pruner.update(samples)


def by_index(pruner, index, samples):
    return pruner.update(samples, index=torch.tensor(index))


def again(pruner, index, samples):
    pruner.update(samples)
    return pruner.reweight(samples)


def again_by_index(pruner, index, samples):
    pruner.update(samples, index=torch.tensor(index))
    return pruner.reweight(samples, index=torch.tensor(index))


def by_the_loop(pruner, index, samples):
    weights = pruner.batch_weights()
    pruner.record(samples)
    return (weights * samples.rescaled(weights)).mean()


@pytest.mark.parametrize("call", [by_position, by_index, again, again_by_index, by_the_loop])
def test_the_gradient_of_a_batch_is_the_slow_formula(call):
    parameters = parameters_of()
    for seed in range(10):
        pruner = pruned(seed)
        weight_of = dict(zip(pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True))
        assert set(weight_of.values()) == {1.0, 2.0}
        for index in pruner.batch_sampler(2):
            loss = call(pruner, index, samples_of(index, parameters))
            expected = slow_gradient(index, [weight_of[sample] for sample in index])
            np.testing.assert_allclose(gradient_of(loss, parameters), expected, rtol=1e-6)


def test_keyed_samples():
    pruner, parameters = infobatch.KeyedPruner(4, policy="mean", delta=1.0), parameters_of()
    keys = list(range(SIZE))
    pruner.update(infobatch.PerSample(torch.ones(SIZE), torch.tensor(SCORES)), key=keys)
    pruner.set_epoch(1)
    kept = [key for key in keys if pruner.keeps(key)]
    assert len(kept) < SIZE
    loss = pruner.update(samples_of(kept, parameters), key=kept)
    expected = slow_gradient(kept, pruner.weights(kept).tolist())
    np.testing.assert_allclose(gradient_of(loss, parameters), expected, rtol=1e-6)


def batchings(samples, size):
    """Every way to visit samples in batches; their order within a batch does not matter."""
    if not samples:
        yield []
        return
    for batch in itertools.combinations(samples, min(size, len(samples))):
        rest = [sample for sample in samples if sample not in batch]
        yield from ([batch, *others] for others in batchings(rest, size))


def expected_epoch(draws, batch_size, gradient):
    """The sum of the gradients of an epoch times the batch sizes, over every draw and every order."""
    sums = [
        sum(len(batch) * gradient(batch, weights) for batch in batches)
        for weights in draws
        for batches in batchings(list(weights), batch_size)
    ]
    return np.mean(sums, axis=0)


@pytest.mark.parametrize("batch_size", [2, 3, 6])
def test_the_expected_gradient_is_that_of_all_data_by_enumeration(batch_size):
    """Of four samples below the mean, two are kept, with weight 2."""
    kept_always = {sample: 1.0 for sample in range(SIZE) if SCORES[sample] > np.mean(SCORES)}
    prunable = [sample for sample in range(SIZE) if sample not in kept_always]
    number = len(prunable) // 2
    draws = [
        kept_always | dict.fromkeys(chosen, len(prunable) / number)
        for chosen in itertools.combinations(prunable, number)
    ]
    plans = {tuple(sorted(pruned(seed).plan.order.tolist())) for seed in range(200)}
    assert plans == {tuple(sorted(draw)) for draw in draws}

    def right(batch, weights):
        return slow_gradient(batch, [weights[sample] for sample in batch])

    def unweighted_divisor(batch, weights):
        above = sum(weights[sample] * SLOPES[sample] for sample in batch)
        return above / sum(COUNTS[sample] for sample in batch)

    whole = expected_epoch([dict.fromkeys(range(SIZE), 1.0)], batch_size, right)
    bias = expected_epoch(draws, batch_size, right) / whole - 1
    wrong = expected_epoch(draws, batch_size, unweighted_divisor) / whole - 1
    assert np.abs(bias).max() < 0.06 / batch_size  # that of a ratio
    assert wrong.max() < -0.13


def epochs_sums(policy, counted, seeds):
    """The gradient of pruned epochs over that of all data, and its standard error."""
    rng = np.random.default_rng(0)
    size, batch = 1024, 16
    counts = np.minimum(1.0 + rng.geometric(0.12, size), 60)  # objects in images
    slopes = counts[:, None] * rng.uniform(0.6, 1.6, (size, 1))
    parameters = torch.ones(1, dtype=torch.float64, requires_grad=True)
    whole, sums = [], []
    for seed in range(seeds):
        pruner = infobatch.Pruner(size, 4, policy=policy, delta=1.0, seed=seed)
        for results in (whole, sums):
            total = 0.0
            for index in pruner.batch_sampler(batch):
                samples = samples_of(index, parameters, counted, counts, slopes)
                by = torch.tensor(slopes[index, 0])
                sizes = {GRADIENT: by.sqrt()}
                samples = infobatch.PerSample(samples.losses, by, sizes, samples.counts)
                total += len(index) * gradient_of(pruner.update(samples), parameters)[0]
            results.append(total)
        assert pruner.savings.epochs[1].kept_fraction < 0.9
    ratios = np.array(sums) / np.mean(whole)
    return ratios.mean(), ratios.std(ddof=1) / np.sqrt(seeds)


@pytest.mark.parametrize("policy", ["auto", "mean", "random"])
def test_many_samples_by_a_z_test(policy):
    ratio, error = epochs_sums(policy, counted=True, seeds=20)
    assert error < 0.005
    assert abs(ratio - 1) < 4 * error + 0.003  # the bias of a ratio of 16 samples


def test_without_counts_the_gradient_is_too_small():
    ratio, error = epochs_sums("auto", counted=False, seeds=5)
    assert ratio < 0.9
    assert error < 0.01


@pytest.mark.parametrize("index", [False, True])
def test_a_whole_epoch_gives_the_same_bits_as_without_counts(index):
    results = []
    for counted in (True, False):
        pruner, parameters = infobatch.Pruner(SIZE, 4), parameters_of()
        for batch in pruner.batch_sampler(4):
            samples = samples_of(batch, parameters, counted)
            place = {"index": torch.tensor(batch)} if index else {}
            results.append(pruner.update(samples, **place).item())
    assert results[:2] == results[2:]


def test_equal_counts_give_the_same_bits_as_none():
    losses, weights = torch.rand(7), torch.rand(7)
    samples = infobatch.PerSample(losses, losses, counts=torch.ones(7, dtype=torch.int64))
    assert torch.equal(samples.rescaled(weights), losses)


@pytest.mark.parametrize("weights", [[1.0, 2.0], [0.0, 1.0], [0.0, 0.0]])
def test_nothing_that_counts(weights):
    """In the batch, or only in repeats of weight 0: nothing is corrected, and nothing is NaN."""
    counts = torch.tensor([3.0, 0.0]) if weights[0] == 0 else torch.zeros(2)
    samples = infobatch.PerSample(torch.ones(2), torch.ones(2), counts=counts)
    assert samples.rescaled(torch.tensor(weights)).tolist() == [1.0, 1.0]


def test_parts_with_divisors_of_their_own():
    """A loss is the sum of three parts, each divided by another number."""
    rng = np.random.default_rng(0)
    counts = rng.uniform(1, 9, (3, SIZE))
    sums = rng.uniform(1, 9, (3, SIZE))
    weights = np.array([1.0, 2.0, 1.0, 4.0, 1.5, 1.0])
    losses = torch.tensor(sums * SIZE / counts.sum(1, keepdims=True))
    own = torch.tensor(counts)
    samples = infobatch.PerSample(
        losses.sum(0),
        losses.sum(0),
        counts=own[0],
        parts=[(losses[1], own[1]), (losses[2], own[2])],
    )
    expected = sum(
        float(slow_gradient(range(SIZE), weights, count, part[:, None])[0])
        for count, part in zip(counts, sums, strict=True)
    )
    pair = torch.tensor(weights)
    assert float((pair * samples.rescaled(pair)).mean()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("field", ["counts", "parts"])
def test_errors(field):
    pruner, losses = infobatch.Pruner(4, 2), torch.ones(4)
    others = {"counts": torch.ones(3)}
    if field == "parts":
        others = {"counts": torch.ones(4), "parts": [(losses, torch.ones(3))]}
    samples = infobatch.PerSample(losses, losses, **others)
    message = (
        r"got a PerSample with counts or parts of torch.Size\(\[3\]\), expected one number per"
    )
    with pytest.raises(ValueError, match=r"update\(\) " + message):
        pruner.update(samples)
    next(iter(pruner.batch_sampler(4)))
    pruner.update(losses)
    with pytest.raises(ValueError, match=r"reweight\(\) " + message):
        pruner.reweight(samples)
