import numpy as np
import pytest

from infobatch.policies import EpsilonGreedyPrune
from remembered import kept_by, losses_by_epoch, samples_after

SIZE = 200


def averages(epochs, alpha):
    """Raju et al.'s s, sample by sample."""
    averages = []
    for sample in range(epochs.shape[1]):
        s = None
        for x in epochs[:, sample]:
            if not np.isnan(x):
                s = x if s is None else (1 - alpha) * s + alpha * x
        averages.append(s)
    return averages


def test_the_highest_averages_and_some_of_the_rest():
    epochs = losses_by_epoch(4, SIZE)
    epochs[2, ::3] = np.nan
    policy = EpsilonGreedyPrune(ratio=0.6, epsilon=0.25, smoothing=0.8)
    s = averages(epochs, alpha=0.2)
    strata = policy.strata(samples_after(policy, epochs))
    order = sorted(range(SIZE), key=lambda sample: -s[sample])
    greedy, rest = set(order[:60]), set(order[60:])  # of 80 kept, a quarter is drawn
    times = np.zeros(SIZE)
    for seed in range(300):
        kept, weights = kept_by(strata, seed)
        assert greedy <= set(kept)
        assert len(kept) == 80
        assert set(weights) == {1.0}
        times[kept] += 1
    share = 20 / 140
    spread = np.sqrt(300 * share * (1 - share))
    assert (np.abs(times[list(rest)] - 300 * share) < 5 * spread).all(), "uniform among the rest"


def test_without_exploration_it_is_greedy():
    epochs = losses_by_epoch(1, SIZE)
    policy = EpsilonGreedyPrune(ratio=0.5, epsilon=0.0)
    kept, _ = kept_by(policy.strata(samples_after(policy, epochs)))
    assert kept == sorted(np.argsort(epochs[0])[SIZE // 2 :].tolist())


def test_with_exploration_alone_it_is_random():
    epochs = losses_by_epoch(1, SIZE)
    policy = EpsilonGreedyPrune(ratio=0.5, epsilon=1.0)
    strata = policy.strata(samples_after(policy, epochs))
    assert strata.keep[0] == pytest.approx(0.5)
    assert len(kept_by(strata)[0]) == SIZE // 2


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_ties_are_broken_at_random_and_the_number_stays(epsilon):
    policy = EpsilonGreedyPrune(ratio=0.4, epsilon=epsilon)
    strata = policy.strata(samples_after(policy, [np.full(SIZE, 0.5)]))
    kept = [kept_by(strata, seed)[0] for seed in range(2)]
    assert [len(samples) for samples in kept] == [120, 120]
    assert kept[0] != kept[1]


def test_a_target_and_costs_come_before_the_ratio():
    epochs = losses_by_epoch(2, SIZE)
    cost = np.where(np.arange(SIZE) % 2, 5, 1).astype(np.float32)
    policy = EpsilonGreedyPrune(ratio=0.1, epsilon=0.2)
    strata = policy.strata(samples_after(policy, epochs, target=0.3, cost=cost))
    left = 1 - np.mean([cost[kept_by(strata, seed)[0]].sum() for seed in range(50)]) / cost.sum()
    assert left == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ratio": 1.0}, r"EpsilonGreedyPrune\(ratio=…\) got 1.0"),
        (
            {"epsilon": 1.5},
            r"EpsilonGreedyPrune\(epsilon=…\) got 1.5, expected a number >= 0 and <= 1",
        ),
        ({"smoothing": 1.0}, r"EpsilonGreedyPrune\(smoothing=…\) got 1.0"),
    ],
)
def test_errors(options, text):
    with pytest.raises(ValueError, match=text):
        EpsilonGreedyPrune(**options)
