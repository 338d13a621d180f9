import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import RepbPrune
from remembered import kept_by, losses_by_epoch, samples_after

pytestmark = pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
SIZE = 120


def test_against_the_paper():
    rng = np.random.default_rng(0)
    epochs = losses_by_epoch(6, SIZE)
    epochs[1:][rng.random((5, SIZE)) < 0.4] = np.nan
    policy = RepbPrune(0.5)
    samples = samples_after(policy, epochs)
    strata = policy.strata(samples)
    visits = np.isfinite(epochs).sum(0)
    last = [row[np.isfinite(row)][-1] for row in epochs.T]
    mean = np.mean(last, dtype=float)
    times = np.zeros(SIZE)
    for seed in range(200):
        kept, weights = kept_by(strata, seed)
        for sample, weight in zip(kept, weights, strict=True):
            assert weight == pytest.approx(7 / (visits[sample] + 1), rel=1e-12)
        times[kept] += 1
    hard = np.array(last) >= mean
    assert (times[hard] == 200).all()
    for count in np.unique(visits):  # of each count of visits, half of those below the mean
        easy = ~hard & (visits == count)
        if easy.any():
            assert times[easy].sum() == 200 * max(1, round(0.5 * easy.sum()))


def test_over_a_run_the_weights_of_a_sample_sum_to_nearly_the_number_of_epochs():
    size, epochs = 400, 60
    pruner = infobatch.Pruner(size, epochs, policy=RepbPrune(0.5), delta=1.0)
    losses = torch.linspace(0, 1, size)
    totals = np.zeros(size)
    for _ in range(epochs):
        totals[pruner.plan.order.numpy()] += pruner.plan.weights.numpy()
        order = torch.tensor(list(pruner.sampler))
        pruner.update(losses[order])
        pruner.set_epoch(pruner.epoch + 1)
    easy = totals[:200] / epochs
    assert totals[200:] == pytest.approx(epochs)
    assert easy.mean() == pytest.approx(1, abs=0.05), "asymptotically, its paper says"
    assert easy.std() > 0.01, "and not in a single run"


def test_more_counts_than_strata_share_mean_weights():
    size = 3000
    samples = samples_after(RepbPrune(), losses_by_epoch(1, size), epoch=999)
    visits = np.random.default_rng(0).integers(0, 1000, size).astype(np.uint16)
    samples = infobatch.Samples(samples.scores, epoch=999, columns={"visits": visits})
    strata = RepbPrune(0.0).strata(samples)
    assert len(strata.keep) <= 252
    kept, weights = kept_by(strata)
    exact = 1000 / (visits[kept] + 1)
    assert sum(weights) == pytest.approx(exact.sum(), rel=1e-9)
    often = visits[kept] > 100
    assert np.array(weights)[often] == pytest.approx(exact[often], rel=0.05)


def test_equal_losses_prune_nothing():
    policy = RepbPrune()
    kept, _ = kept_by(policy.strata(samples_after(policy, [np.full(SIZE, 0.5)])))
    assert len(kept) == SIZE


def test_errors():
    with pytest.raises(ValueError, match=r"RepbPrune\(ratio=…\) got -1"):
        RepbPrune(-1)
