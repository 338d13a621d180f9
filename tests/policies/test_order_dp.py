from math import comb

import numpy as np
import pytest

from infobatch.policies import OrderDpPrune
from remembered import kept_by, losses_by_epoch, samples_after


def chance_of_rank(rank, size, drawn, kept):
    """The paper's: the chance that a sample is drawn and fewer than ``kept`` harder ones are, too.

    ``rank`` counts the samples that are harder.
    """
    among = [
        comb(rank, harder) * comb(size - 1 - rank, drawn - 1 - harder)
        for harder in range(min(kept, drawn))
    ]
    return sum(among) / comb(size, drawn)


@pytest.mark.parametrize(("drawn", "kept"), [(0.5, 0.6), (0.75, 0.8), (1.0, 0.5), (0.4, 1.0)])
def test_each_rank_is_kept_as_often_as_the_paper_says(drawn, kept):
    size, draws = 20, 3000
    losses = losses_by_epoch(1, size)
    policy = OrderDpPrune(drawn, kept)
    times = np.zeros(size)
    for seed in range(draws):
        chosen, weights = kept_by(policy.strata(samples_after(policy, losses, seed=seed)))
        assert len(chosen) == round(size * drawn * kept)
        assert set(weights) == {1.0}
        times[chosen] += 1
    hardest_first = np.argsort(-losses[0])
    for rank, sample in enumerate(hardest_first):
        chance = chance_of_rank(rank, size, round(drawn * size), round(drawn * kept * size))
        spread = np.sqrt(chance * (1 - chance) / draws)
        assert abs(times[sample] / draws - chance) <= 5 * spread + 1e-9


def test_the_hardest_of_those_drawn():
    """Two samples are kept of four drawn: whatever is drawn, harder ones push easier ones out."""
    losses = np.arange(8, dtype=np.float32)[None]
    policy = OrderDpPrune(0.5, 0.5)
    for seed in range(50):
        chances = samples_after(policy, losses, seed=seed).rng().random(8, dtype=np.float32)
        drawn = sorted(range(8), key=lambda sample: -chances[sample])[:4]
        chosen, _ = kept_by(policy.strata(samples_after(policy, losses, seed=seed)))
        assert chosen == sorted(drawn)[-2:]


def test_a_budget_draws_more_or_fewer_and_keeps_the_share_of_them():
    losses = losses_by_epoch(1, 1000)
    policy = OrderDpPrune(0.75, 0.8)
    for target in (0.1, 0.3, 0.6):
        strata = policy.strata(samples_after(policy, losses, target=target))
        assert len(kept_by(strata)[0]) == 1000 - round(1000 * target)


def test_costs_ties_and_unknown_losses():
    cost = np.where(np.arange(400) % 2, 7, 1).astype(np.float32)
    policy = OrderDpPrune()
    losses = np.full((1, 400), 0.5, np.float32)
    losses[0, ::7] = np.nan
    spent = [
        cost[
            kept_by(policy.strata(samples_after(policy, losses, target=0.4, cost=cost, seed=s)), s)[
                0
            ]
        ]
        for s in range(30)
    ]
    assert np.mean([epoch.sum() for epoch in spent]) / cost.sum() == pytest.approx(0.6, abs=0.02)


def test_errors():
    with pytest.raises(
        ValueError, match=r"OrderDpPrune\(draw_ratio=…\) got 0, expected a number > 0"
    ):
        OrderDpPrune(draw_ratio=0)
    with pytest.raises(
        ValueError, match=r"OrderDpPrune\(keep_ratio=…\) got 1.5, expected a number > 0"
    ):
        OrderDpPrune(keep_ratio=1.5)
