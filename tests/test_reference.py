"""The fast path, stepped beside the paper's equations for 50 epochs of random losses."""

import numpy as np
import pytest
import torch

import infobatch
from reference import ReferenceInfoBatch


@pytest.mark.parametrize(
    ("ratio", "delta", "skew"), [(0.5, 0.875, 1.0), (0.3, 0.9, 0.1), (0.75, 1.0, 3.0)]
)
def test_fifty_epochs_beside_the_reference(ratio, delta, skew):
    size, num_epochs = 137, 50
    rng = np.random.default_rng(1)
    pruner = infobatch.Pruner(size, num_epochs, policy=infobatch.MeanPrune(ratio), delta=delta)
    reference = ReferenceInfoBatch(size, num_epochs, ratio, delta)
    for epoch in range(num_epochs):
        eligible = reference.eligible(epoch)
        weights, kept = reference.weights(epoch)
        pruner.set_epoch(epoch)
        plan = pruner.plan
        order = plan.order.tolist()
        if eligible:
            assert plan.thresholds == (reference.threshold(),)
        assert set(range(size)) - set(order) <= eligible
        assert len(eligible & set(order)) == kept
        assert plan.weights.tolist() == [weights[sample] for sample in order]
        assert sum(plan.weights.tolist()) == pytest.approx(size, rel=1e-12)

        losses = np.exp(skew * rng.normal(size=len(order))).astype(np.float32)
        assert list(pruner.sampler) == order
        walk = iter(pruner.sampler)
        for start in range(0, len(order), 10):
            batch = [next(walk) for _ in order[start : start + 10]]
            chunk = torch.from_numpy(losses[start : start + 10])
            loss = pruner.update(chunk)
            expected = np.mean(
                [weights[s] * float(v) for s, v in zip(batch, chunk.tolist(), strict=True)]
            )
            assert loss.item() == pytest.approx(expected, rel=1e-5)
            for sample, value in zip(batch, chunk.tolist(), strict=True):
                reference.visit(sample, value)
        scores = [float("nan") if s is None else s for s in reference.scores]
        assert np.array_equal(pruner.scores.numpy(), np.array(scores, np.float32), equal_nan=True)


def test_quantile_rule_saves_what_the_paper_reports():
    """0.475 of the pruned epochs: 41.3% of a run of 150 epochs, as in Tables 6 and 7."""
    size, num_epochs = 2000, 150
    pruner = infobatch.Pruner(size, num_epochs, policy="quantile")
    rng = np.random.default_rng(0)
    for epoch in range(num_epochs):
        pruner.set_epoch(epoch)
        count = len(list(pruner.sampler))
        walk = iter(pruner.sampler)
        for _ in range(count):
            next(walk)
        pruner.update(torch.from_numpy(rng.exponential(size=count).astype(np.float32)))
    assert pruner.savings.fraction == pytest.approx(0.475 * 131 / 150, abs=2e-3)
    assert pruner.savings.fraction == pytest.approx(0.413, abs=3e-3)
