"""Savings: sample passes, counted."""

import pytest
import torch
from torch.utils.data import DataLoader

import infobatch
from infobatch.savings import EpochPasses
from numbered import Numbered, run_epoch


def test_by_epoch_and_in_all():
    train_data = infobatch.InfoBatch(Numbered(200), 8)
    loader = DataLoader(train_data, 16, sampler=train_data.sampler)
    visits = [len(run_epoch(train_data, loader, epoch)) for epoch in range(8)]
    savings = train_data.savings
    assert [epoch.made for epoch in savings.epochs] == visits
    assert [epoch.saved for epoch in savings.epochs] == [200 - visit for visit in visits]
    assert [epoch.epoch for epoch in savings.epochs] == list(range(8))
    assert savings.fraction == pytest.approx(savings.saved / 1600)
    assert str(savings) == (
        f"Saved {savings.fraction:.1%} of 1,600 sample passes ({savings.made:,} made in 8 epochs)"
    )
    numbers = savings.as_dict()
    assert numbers["infobatch/samples_saved"] == savings.saved == train_data.get_pruned_count()
    assert numbers["infobatch/kept_fraction"] == 1.0, "the eighth epoch of eight is whole"
    assert "infobatch/threshold" not in numbers
    assert savings.epochs[1].thresholds == (pytest.approx(savings.epochs[1].thresholds[0]),)


def test_before_anything():
    savings = infobatch.InfoBatch(Numbered(200), 4).savings
    assert (savings.made, savings.saved, savings.fraction) == (0, 0, 0.0)
    assert str(savings) == "Saved 0.0% of 0 sample passes (0 made in 0 epochs)"


def test_breaking_off_is_no_saving():
    pruner = infobatch.Pruner(100, 4, delta=1.0)
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index)]))
    for position, index in enumerate(pruner.sampler):
        if position == 15:
            break
        pruner.update(torch.tensor([float(index)]))
    assert len(pruner.plan) == 75
    assert pruner.savings.epochs[1].made == 15
    assert pruner.savings.saved == 25 * 15 // 75
    assert pruner.savings.as_dict()["infobatch/threshold"] == 49.5


def test_an_incomplete_batch_that_is_dropped_is_neither_a_pass_nor_a_saving():
    """The numbers of docs/usage.md."""
    assert EpochPasses(1, 100, 60, 48, 0).saved == 32
    train_data = infobatch.InfoBatch(list(range(100)), 2)
    for batch in DataLoader(train_data, 16, sampler=train_data.sampler, drop_last=True):
        train_data.update(torch.ones(len(batch)))
    train_data.set_epoch(1)
    assert str(train_data.savings) == "Saved 0.0% of 96 sample passes (96 made in 1 epoch)"


def test_scores_that_are_not_finite_are_not_called_losses():
    """The losses were fine: what was ranked by was not."""
    pruner = infobatch.Pruner(8, 2)
    for index in pruner.batch_sampler(8):
        scores = torch.tensor([float("nan") if sample < 3 else 1.0 for sample in index])
        assert pruner.update(torch.ones(8), scores=scores) == 1
    text = "Saved 0.0% of 8 sample passes (8 made in 1 epoch, 3 of them without a score: NaN, infinite or skipped)"
    assert str(pruner.savings) == text
