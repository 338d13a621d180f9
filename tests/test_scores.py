"""score(): a pass without gradients fills the scores before the first epoch."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import infobatch


def problem(size=50):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


@pytest.mark.parametrize("batch_size", [7, 50, 256])
def test_scores_are_the_losses_in_evaluation_mode(batch_size):
    model, data = network(), problem()
    model.train()
    before = torch.get_rng_state()
    scores = infobatch.score(model, data, losses, batch_size=batch_size)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    expected = losses(model.eval(), data.tensors)
    assert not scores.requires_grad
    assert torch.allclose(scores, expected.detach(), atol=1e-6)


def test_they_prune_the_first_epoch():
    data = problem()
    scores = infobatch.score(network(), data, losses)
    below = int((scores < scores.mean()).sum())
    train_data = infobatch.InfoBatch(data, 1, delta=1.0, initial_scores=scores)
    assert len(train_data.plan) == 50 - below + round(below / 2)


def test_a_scoring_function_s_own_scores_and_collate():
    def tasks(model, batch):
        return infobatch.PerSample(model(batch).squeeze(1), torch.arange(len(batch)) + 1.0)

    model = nn.Linear(4, 1).eval()
    rows = [row for row, _ in problem(5)]
    scores = infobatch.score(model, rows, tasks, batch_size=3, collate=torch.stack)
    assert scores.tolist() == [1, 2, 3, 1, 2]
    assert not model.training


def test_what_raises():
    data = problem()
    with pytest.raises(ValueError, match=r"score\(\) got a scalar, expected one loss per sample"):
        infobatch.score(network(), data, lambda model, batch: losses(model, batch).mean())
    with pytest.raises(
        ValueError, match=r"score\(\) got 44 losses for 50 samples, expected one each"
    ):
        infobatch.score(
            network(), data, lambda model, batch: losses(model, batch)[1:], batch_size=9
        )
    with pytest.raises(ValueError, match=r"batch_size got 0"):
        infobatch.score(network(), data, losses, batch_size=0)
