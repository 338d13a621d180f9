"""The two-band rule where many losses are equal, as in bfloat16."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import QuantilePrune, Samples
from rank_threads import Exchange


def band_sizes(scores):
    samples = Samples(np.asarray(scores, np.float32), epoch=5, num_epochs=10)
    strata = QuantilePrune().strata(samples)
    others, middle, lowest = np.bincount(strata.labels, minlength=3).tolist()
    assert others + middle + lowest == len(scores)
    return middle, lowest


def test_learned_samples_whose_bfloat16_loss_is_0_are_in_the_lowest_band():
    """Well-learned cross-entropies: a quarter of them round to exactly 0 in pure bfloat16."""
    margins = torch.linspace(0.5, 7.5, 10_000)
    logits = torch.stack([margins, torch.zeros_like(margins)], 1).bfloat16()
    losses = torch.nn.functional.cross_entropy(
        logits, torch.zeros(len(logits), dtype=torch.long), reduction="none"
    )
    zeros = int((losses == 0).sum())
    assert losses.dtype is torch.bfloat16
    assert 0.2 < zeros / 10_000 < 0.4
    middle, lowest = band_sizes(losses.float())
    assert lowest == zeros
    assert middle > 0


@pytest.mark.parametrize(
    ("zeros", "expected"),
    [(10, 20), (20, 20), (30, 30), (39, 39), (40, 0), (60, 0)],  # of 100, where 20 are wanted
)
def test_equal_scores_go_to_the_side_that_brings_the_band_closer_to_its_share(zeros, expected):
    scores = np.concatenate([np.zeros(zeros), np.arange(1, 101 - zeros)])
    assert band_sizes(scores)[1] == expected


def test_ranks_that_share_the_scores_find_the_same_bands():
    scores = np.concatenate([np.zeros(30), np.arange(1, 71)]).astype(np.float32)
    exchange = Exchange(2)

    def labels(rank):
        def total(own):
            return exchange.gather(rank, torch.from_numpy(own)).sum(0).numpy()

        samples = Samples(scores[rank::2], epoch=5, num_epochs=10, sum=total)
        return QuantilePrune().strata(samples).labels

    with ThreadPoolExecutor(2) as ranks:
        parts = list(ranks.map(labels, range(2)))
    whole = QuantilePrune().strata(Samples(scores, epoch=5, num_epochs=10)).labels
    assert [part.tolist() for part in parts] == [whole[rank::2].tolist() for rank in range(2)]
    assert (whole == 2).sum() == 30


def test_it_still_trains():
    pruner = infobatch.Pruner(100, 3, policy="quantile", delta=1.0)
    pruner.update(torch.zeros(100), index=torch.arange(100))
    pruner.set_epoch(1)
    assert pruner.plan.weights.sum().item() == pytest.approx(100)
