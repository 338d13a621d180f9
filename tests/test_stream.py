"""StreamPruner: unbiased, within its budget or its noise limit, resumable, honest about its cost."""

import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import infobatch
from infobatch import StreamPruner

KEEP = 0.4


def batches(count, size=32, seed=0, scale=lambda step: 1.0):
    rng = np.random.default_rng(seed)
    for step in range(count):
        yield torch.from_numpy(rng.lognormal(0.0, 1.0, size) * scale(step)).float()


@pytest.mark.parametrize("options", [{"keep": KEEP}, {"count": 5}], ids=str)
def test_the_expected_gradient_is_that_of_the_whole_batch(options):
    """A z-test in each coordinate, over draws that all meet the same batch in the same state."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 5), torch.randint(3, (12,))
    model = nn.Linear(5, 3)
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    (whole,) = torch.autograd.grad(losses.mean(), model.weight)
    gradients = []
    for seed in range(3000):
        kept = StreamPruner(**options, seed=seed).select(losses.detach())
        part = nn.functional.cross_entropy(model(x[kept.index]), y[kept.index], reduction="none")
        (gradient,) = torch.autograd.grad(kept.mean(part), model.weight)
        gradients.append(gradient)
    gradients = torch.stack(gradients)
    z = (gradients.mean(0) - whole) / (gradients.std(0) / math.sqrt(len(gradients)))
    assert z.abs().max() < 4
    assert gradients.std(0).max() > 0.01


SHARES = [{"keep": KEEP}, {"keep": KEEP, "max_noise": 0.5}, {"keep": KEEP, "window": 40}]


@pytest.mark.parametrize("options", [*SHARES, {"count": 6}], ids=str)
def test_the_expected_sum_is_that_of_all_batches_while_c_is_tracked(options):
    """A z-test of each batch of a stream whose losses fall, with one that is not usable."""
    stream = list(batches(12, 16, scale=lambda step: 0.8**step))
    stream[3][5] = math.nan
    values = torch.from_numpy(np.random.default_rng(1).normal(1, 1, (12, 16))).float()
    sums = torch.zeros(200, 12)
    for seed in range(len(sums)):
        pruner = StreamPruner(seed=seed, **options)
        for step, scores in enumerate(stream):
            kept = pruner.select(scores)
            sums[seed, step] = kept.mean(values[step][kept.index])
    error = sums.std(0) / math.sqrt(len(sums))
    assert error.min() > 1e-4  # every batch is pruned
    z = (sums.mean(0) - values.mean(1)) / error
    assert z.abs().max() < 4
    assert abs(z.mean()) * math.sqrt(len(z)) < 4  # nor do small errors add up


@pytest.mark.parametrize("options", SHARES, ids=str)
def test_probabilities_do_not_depend_on_earlier_draws(options):
    """If c followed the number of samples that were drawn, it would depend on them."""
    weights = []
    for seed in range(3):
        pruner = StreamPruner(seed=seed, **options)
        by_sample = torch.full((50, 32), math.nan)
        for step, scores in enumerate(batches(50)):
            kept = pruner.select(scores)
            by_sample[step, kept.index] = kept.weights
        weights.append(by_sample)
    for other in weights[1:]:
        both = weights[0].isfinite() & other.isfinite()
        assert both.sum() > 200
        assert torch.equal(weights[0][both], other[both])


@pytest.mark.parametrize(("count", "size"), [(2000, 8), (937, 64), (20, 3000)])
def test_the_budget_is_met(count, size):
    pruner = StreamPruner(KEEP)
    for scores in batches(count, size):
        pruner.select(scores)
    savings = pruner.savings
    assert savings.trained / savings.scored == pytest.approx(KEEP, abs=0.005)


def test_the_budget_is_met_while_losses_fall():
    pruner = StreamPruner(KEEP)
    for scores in batches(2000, scale=lambda step: 0.998**step):
        pruner.select(scores)
    assert pruner.savings.trained / pruner.savings.scored == pytest.approx(KEEP, abs=0.005)


def test_a_hard_batch_keeps_more_than_an_easy_one():
    pruner = StreamPruner(KEEP)
    easy, hard = [], []
    for step, scores in enumerate(batches(400, scale=lambda step: 10.0 if step % 2 else 1.0)):
        (hard if step % 2 else easy).append(len(pruner.select(scores)))
    assert sum(easy[50:]) * 4 < sum(hard[50:])


def noise_of(pruner, scores):
    """The noise that the probabilities of the scores in the window add, by their definition."""
    scores = scores.double().numpy()
    chances = pruner._probabilities(scores)
    return float((scores**2 / chances).sum() / (scores**2).sum() - 1)


@pytest.mark.parametrize("limit", [0.02, 0.1, 0.5])
def test_the_noise_stays_below_its_limit(limit):
    scores = next(batches(1, 2048))
    pruner = StreamPruner(0.1, max_noise=limit)
    free = StreamPruner(0.1)
    assert limit / 2 < noise_of(pruner, scores) <= limit + 1e-6
    assert noise_of(free, scores) > 0.5
    assert len(pruner.select(scores)) > len(free.select(scores)) > 200


def test_the_limit_holds_for_the_gradients_that_are_trained_with():
    """The variance that pruning adds to mini-batch gradients, at a minimum, where all else is noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 4, generator=generator, dtype=torch.float64)
    y = x.sum(1) + torch.randn(4096, generator=generator, dtype=torch.float64) ** 3
    best = torch.linalg.lstsq(x, y[:, None]).solution
    gradients = (x @ best - y[:, None]) * x  # of each sample; their mean is 0
    variance = gradients.square().sum(1).mean() / 64  # of the mean of 64 of them

    def added(pruner):
        errors = []
        for _ in range(500):
            batch = gradients[torch.randint(4096, (64,), generator=generator)]
            kept = pruner.select(batch.norm(dim=1))
            pruned = kept.weights.double() @ batch[kept.index] / kept.batch_size
            errors.append((pruned - batch.mean(0)).square().sum())
        return torch.stack(errors).mean() / variance

    limited = StreamPruner(0.1, max_noise=0.2)
    assert 0.1 < added(limited) < 0.2
    assert limited.savings.trained < 0.6 * limited.savings.scored
    assert added(StreamPruner(0.1)) > 0.6


def test_a_limit_that_is_not_reached_changes_nothing():
    strict, free = StreamPruner(0.6, max_noise=2.0), StreamPruner(0.6)
    for scores in batches(50):
        assert torch.equal(strict.select(scores).index, free.select(scores).index)


def test_what_the_limit_keeps_is_not_taken_back():
    pruner = StreamPruner(0.1, max_noise=0.05)
    sizes = [len(pruner.select(scores)) for scores in batches(400, 64)]
    assert sum(sizes[200:]) == pytest.approx(sum(sizes[:200]), rel=0.05)
    assert sum(sizes) / (400 * 64) > 0.2


def test_weights_are_one_over_the_probability_and_bounded_by_the_floor():
    scores = torch.cat([torch.full((1000,), 1e-6), torch.ones(10)])
    kept = StreamPruner(0.11, floor=0.1).select(scores)
    assert kept.weights.max() <= 10
    easy = kept.weights[kept.index < 1000]
    assert len(easy) == pytest.approx(100, abs=15)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_samples_without_a_usable_score_are_kept_and_counted(bad):
    pruner = StreamPruner(0.2)
    for scores in batches(40):
        scores[3] = bad
        kept = pruner.select(scores)
        assert kept.weights[kept.index == 3].tolist() == [1.0]
    assert pruner.savings.unscored == 40
    assert "40 of them without a usable score" in str(pruner.savings)
    # The others keep to the budget, and do not pay for it.
    others = pruner.savings.trained - 40
    assert others / (40 * 31) == pytest.approx(0.2, abs=0.02)


def test_nothing_usable_keeps_everything():
    kept = StreamPruner(0.2).select(torch.full((6,), math.nan))
    assert kept.index.tolist() == list(range(6))
    assert kept.weights.tolist() == [1.0] * 6


@pytest.mark.parametrize("options", [{}, {"max_noise": 2.0}])
def test_equal_scores_are_drawn_uniformly(options):
    """All zeros as well: there is nothing to choose by."""
    for value in (0.0, 3.0):
        kept = StreamPruner(0.5, **options).select(torch.full((100,), value))
        assert len(kept) == 50
        assert torch.allclose(kept.weights, torch.full((50,), 2.0))


def test_scores_of_zero_have_no_more_than_the_floor():
    scores = torch.cat([torch.zeros(500), torch.rand(500) + 0.5])
    kept = StreamPruner(0.4, floor=0.01).select(scores)
    assert (kept.index < 500).sum() < 15


def test_at_least_one_sample_is_kept():
    pruner = StreamPruner(0.06)
    sizes = [len(pruner.select(scores)) for scores in batches(500, 4)]
    assert min(sizes) == 1
    assert len(StreamPruner(0.06).select(torch.tensor([0.5]))) == 1


def saved_and_loaded(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("stop", [1, 30, 99])
@pytest.mark.parametrize("options", [{"keep": KEEP, "max_noise": 0.3, "window": 100}, {"count": 9}])
def test_a_resumed_pruner_makes_the_same_draws(stop, options):
    stream = list(batches(120))
    stream[7][2] = math.nan
    whole = StreamPruner(seed=5, **options)
    expected = [whole.select(scores) for scores in stream]
    first = StreamPruner(seed=5, **options)
    for scores in stream[:stop]:
        first.select(scores)
    second = StreamPruner(seed=5, **options)
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    for scores, kept in zip(stream[stop:], expected[stop:], strict=True):
        again = second.select(scores)
        assert torch.equal(again.index, kept.index)
        assert torch.equal(again.weights, kept.weights)
    assert second.savings == whole.savings


def test_ranks_and_seeds_have_draws_of_their_own():
    scores = next(batches(1, 200))
    draws = {
        tuple(StreamPruner(KEEP, seed=seed, rank=rank).select(scores).index.tolist())
        for seed in range(3)
        for rank in range(3)
    }
    assert len(draws) == 9


def test_the_global_generators_are_left_alone():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for scores in batches(3):
        StreamPruner(KEEP).select(scores)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


@pytest.mark.parametrize("size", [33, 64, 640])
def test_a_fixed_number_is_kept_of_every_batch(size):
    pruner = StreamPruner(count=33)
    for scores in batches(20, size):
        kept = pruner.select(scores)
        assert len(kept.index.unique()) == len(kept.weights) == 33
        assert kept.weights.min() >= 1
        assert kept.weights.sum() == pytest.approx(size, rel=0.6)
    assert pruner.savings.trained == 20 * 33


def test_a_smaller_batch_is_kept_whole():
    pruner = StreamPruner(count=33)
    kept = pruner.select(torch.rand(20))
    assert kept.index.tolist() == list(range(20))
    assert kept.weights.tolist() == [1.0] * 20
    assert pruner.savings.trained == 20


def test_a_fixed_number_follows_the_scores():
    scores = torch.cat([torch.full((90,), 0.01), torch.full((10,), 5.0)])
    hard = sum(
        (StreamPruner(count=20, seed=seed).select(scores).index >= 90).sum() for seed in range(20)
    )
    assert hard == 20 * 10
    equal = StreamPruner(count=20).select(torch.zeros(100))
    assert equal.weights.mean() == pytest.approx(5, rel=0.3)


def test_a_fixed_number_adds_no_more_noise_than_a_share():
    def error(pruner):
        errors = []
        for scores in batches(300, 256):
            kept = pruner.select(scores)
            signs = torch.ones(256).index_fill(0, torch.arange(0, 256, 2), -1.0)
            sums = (kept.weights * (scores * signs)[kept.index]).sum() - (scores * signs).sum()
            errors.append(sums.square())
        return float(torch.stack(errors).mean().sqrt())

    assert error(StreamPruner(count=77)) < 1.15 * error(StreamPruner(77 / 256))


@pytest.mark.parametrize("number", [3, 12])
def test_a_fixed_number_includes_samples_without_a_usable_score(number):
    """With weight 1 if there is room for them, else by an unbiased draw among them."""
    pruner = StreamPruner(count=8)
    scores = torch.rand(40)
    scores[:number] = torch.tensor([math.nan, math.inf, -1.0] * 4)[:number]
    kept = pruner.select(scores)
    assert (kept.index < number).sum() == min(number, 8)
    assert kept.weights.isfinite().all()
    if number < 8:
        assert kept.weights[kept.index < number].tolist() == [1.0] * number
    assert pruner.savings.unscored == number


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{"keep": KEEP}, {"count": 100}], ids=str)
def test_autocast_changes_nothing(options, dtype):
    """A matrix product under autocast in float16 would overflow at these losses."""
    scores = next(batches(1, 256)) * 1e3
    plain, cast = StreamPruner(**options), StreamPruner(**options)
    expected = plain.select(scores)
    with torch.autocast("cpu", dtype):
        kept = cast.select(scores)
        mean = kept.mean(scores[kept.index])
    assert torch.equal(kept.index, expected.index)
    assert torch.equal(mean, expected.mean(scores[expected.index]))


@pytest.mark.parametrize("options", [{"keep": KEEP}, {"count": 10}], ids=str)
def test_scores_may_come_from_inference_mode(options):
    with torch.inference_mode():
        kept = StreamPruner(**options).select(next(batches(1)))
    losses = torch.ones(len(kept), requires_grad=True)
    kept.mean(losses).backward()
    assert torch.equal(losses.grad, kept.weights / 32)


def test_the_rank_is_that_of_the_data_parallel_group():
    """Ranks that share a batch make the same draw: here two of them, in groups of their own."""
    scores = next(batches(1, 200))
    torch.distributed.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
    try:
        group = torch.distributed.new_group([1, 3])
        kept = StreamPruner(KEEP, process_group=group).select(scores)
        alone = StreamPruner(KEEP).select(scores)
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(kept.index, StreamPruner(KEEP, rank=1).select(scores).index)
    assert torch.equal(alone.index, StreamPruner(KEEP, rank=3).select(scores).index)


def test_the_cost_counts_the_scoring():
    savings = infobatch.StreamSavings(scored=300, trained=100)
    assert savings.cost == pytest.approx(200)  # a third and a third of 300 steps
    assert savings.fraction == pytest.approx(1 / 3)
    assert infobatch.StreamSavings(scored=300, trained=200).fraction == pytest.approx(0)
    assert infobatch.StreamSavings(scored=300, trained=240).fraction == pytest.approx(-2 / 15)
    assert infobatch.StreamSavings(300, 150, forward_cost=0.05).fraction == pytest.approx(0.45)
    assert infobatch.StreamSavings().fraction == 0
    assert savings.as_dict()["infobatch/samples_trained"] == 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_keeps_the_losses_dtype(dtype):
    kept = StreamPruner(KEEP).select(torch.rand(8).to(dtype))
    losses = torch.ones(len(kept), dtype=dtype, requires_grad=True)
    mean = kept.mean(losses)
    assert mean.dtype == dtype
    mean.backward()
    assert float(losses.grad.sum()) == pytest.approx(float(kept.weights.sum()) / 8, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"keep": 1.0},
            r"StreamPruner\(keep=…\) got 1.0, expected the share of the samples to train",
        ),
        ({"keep": "half"}, r"StreamPruner\(keep=…\) got 'half'"),
        ({"floor": -0.1}, r"StreamPruner\(floor=…\) got -0.1, expected the smallest probability"),
        ({"keep": 0.05}, r"keep=0.05, floor=0.05\): expected a floor below keep"),
        ({"max_noise": 0}, r"max_noise=…\) got 0, expected a number above 0"),
        ({"count": 1}, r"count got 1, expected an integer >= 2: .* varies without bounds"),
        ({"count": 8, "keep": 0.3}, r"count=8\) got keep=0.3 and max_noise=None as well"),
        (
            {"count": 8, "max_noise": 0.1},
            r"got keep=None and max_noise=0.1 as well, expected one way",
        ),
        ({"window": 0}, r"window got 0, expected an integer >= 1"),
        ({"seed": -1}, r"seed got -1, expected an integer >= 0"),
        ({"rank": -1}, r"rank got -1, expected an integer >= 0"),
        ({"forward_cost": -1}, r"forward_cost=…\) got -1, expected what scoring a sample costs"),
    ],
)
def test_arguments_that_raise(options, message):
    with pytest.raises(ValueError, match=message):
        StreamPruner(**options)


@pytest.mark.parametrize("scores", [torch.tensor(1.0), torch.ones(2, 2), torch.ones(0), [1.0]])
def test_scores_that_raise(scores):
    with pytest.raises(ValueError, match=r"select\(\) got .*, expected one score per sample"):
        StreamPruner().select(scores)


def test_batches_that_raise():
    with pytest.raises(
        ValueError, match=r"count=4, floor=0.05\).select\(\) got 100 scores, of which"
    ):
        StreamPruner(count=4).select(torch.rand(100))
    with pytest.raises(ValueError, match=r"got 16,777,217 scores, expected at most 16,777,216"):
        StreamPruner().select(torch.empty(2**24 + 1, device="meta"))


def test_losses_of_the_whole_batch_raise():
    kept = StreamPruner(0.2).select(torch.rand(16))
    with pytest.raises(ValueError, match=r"mean\(\) got 16 losses, expected one for each of the"):
        kept.mean(torch.rand(16))


def test_states_that_raise():
    state = StreamPruner(0.3).state_dict()
    with pytest.raises(ValueError, match=r"state of a pruner with .*0.3.*, expected .*0.5"):
        StreamPruner(0.5).load_state_dict(state)
    with pytest.raises(ValueError, match=r"state of version None, expected 1"):
        StreamPruner(0.5).load_state_dict({})
