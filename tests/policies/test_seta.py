import numpy as np
import pytest

from infobatch.policies import SetaPrune
from infobatch.policies.baselines.seta import group_edges
from remembered import kept_by, losses_by_epoch, samples_after

SIZE = 240


def grouped(losses, k):
    """k-means in one dimension, sample by sample, from the quantiles; groups in rising order."""
    ordered = sorted(losses)
    centres = sorted({ordered[int((j + 0.5) / k * len(ordered))] for j in range(k)})
    while True:
        groups = [[] for _ in centres]
        for sample, loss in enumerate(losses):
            nearest = min(range(len(centres)), key=lambda j: (abs(loss - centres[j]), -j))
            groups[nearest].append(sample)
        groups = [group for group in groups if group]
        means = [float(np.mean([losses[sample] for sample in group])) for group in groups]
        if means == centres:
            return groups
        centres = means


def window(groups, epoch, share):
    k = len(groups)
    wide = max(1, round(share * k))
    start = epoch % (k - wide + 1)
    return {sample for group in groups[start : start + wide] for sample in group}


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_window_slides_over_the_groups(k, share):
    losses = losses_by_epoch(1, SIZE, seed=k)
    groups = grouped([float(loss) for loss in losses[0]], k)
    policy = SetaPrune(0.0, groups=k, window=share)
    for epoch in range(1, 12):
        kept, weights = kept_by(policy.strata(samples_after(policy, losses, epoch=epoch)))
        assert set(kept) == window(groups, epoch, share), epoch
        assert set(weights) == {1.0}


def test_a_random_share_is_dropped_from_the_window():
    losses = losses_by_epoch(1, SIZE)
    inside = window(grouped([float(loss) for loss in losses[0]], 5), 3, 0.6)
    policy = SetaPrune(0.25, window=0.6)
    strata = policy.strata(samples_after(policy, losses, epoch=3))
    times = np.zeros(SIZE)
    for seed in range(200):
        kept, _ = kept_by(strata, seed)
        assert set(kept) <= inside
        assert len(kept) == round(0.75 * len(inside))
        times[kept] += 1
    assert (np.abs(times[list(inside)] - 150) < 5 * np.sqrt(200 * 0.25 * 0.75)).all()


def test_equal_and_few_losses_leave_something():
    for losses in (
        np.full(SIZE, 0.5),
        np.r_[np.zeros(SIZE - 1), 1.0],
        np.array([0.3]),
        np.arange(3),
    ):
        policy = SetaPrune(0.0, groups=5, window=0.4)
        for epoch in range(1, 6):
            strata = policy.strata(samples_after(policy, [losses], epoch=epoch))
            assert 0 < len(kept_by(strata)[0]) <= len(losses)


def test_edges_of_many_losses_come_from_some_of_them():
    losses = np.random.default_rng(0).exponential(size=(1 << 21) + 5).astype(np.float32)
    few, many = group_edges(losses[: 1 << 19], 5), group_edges(losses, 5)
    assert few == pytest.approx(many, rel=0.02)
    assert len(group_edges(np.full(10, np.nan, np.float32), 5)) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": 0}, r"SetaPrune\(groups=…\) got 0, expected an integer >= 1"),
        ({"window": 0}, r"SetaPrune\(window=…\) got 0, expected a number > 0 and <= 1"),
    ],
)
def test_errors(options, text):
    with pytest.raises(ValueError, match=text):
        SetaPrune(**options)
