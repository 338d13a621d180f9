"""The experimental choosers on a device, and continued on one from a checkpoint of the host."""

import pytest
import torch
from torch import nn

from infobatch import StreamPruner
from infobatch.experimental.blocking import Blocking, PredictedSizes, Rarity
from infobatch.experimental.hardest import Hardest
from simulated_device import DEVICE, on_host, recording

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
METHODS = {
    "rarity": lambda: (Rarity(8), Hardest(keep=0.5, mean_over="kept")),
    "sizes": lambda: (PredictedSizes(), StreamPruner(keep=0.5)),
}


def steps(blocking, layer, device, number):
    """What is kept of so many batches; with a bad sample in each, which is nothing to learn from."""
    chosen = []
    for _ in range(number):
        x = X.clone()
        x[7] = torch.nan
        layer(x.to(device))
        kept = blocking.kept
        if isinstance(blocking.scorer, PredictedSizes):
            sizes = blocking.features[:, 0].abs() + 0.1
            blocking.scorer.learn(blocking.features, sizes, kept.weights)
        chosen.append((on_host(kept.index), on_host(kept.weights)))
    return chosen


@pytest.mark.parametrize("before", ["cpu", DEVICE], ids=str)
@pytest.mark.parametrize("after", ["cpu", DEVICE], ids=str)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_state_may_come_from_another_device(method, before, after):
    layer = nn.Identity()
    straight = Blocking(layer, *method(), cost=0.5)
    expected = steps(straight, layer, "cpu", 6)
    straight.remove()
    first = Blocking(layer, *method(), cost=0.5)
    steps(first, layer, before, 3)
    first.remove()
    second = Blocking(layer, *method(), cost=0.5)
    second.load_state_dict(first.state_dict())
    for kept, wanted in zip(steps(second, layer, after, 3), expected[3:], strict=True):
        assert torch.equal(kept[0], wanted[0])
        assert torch.allclose(kept[1], wanted[1])
    assert second.savings == straight.savings
    assert second.savings.unscored == 6


def test_the_hardest_are_chosen_without_waiting():
    hardest = Hardest(keep=0.5)
    scores = X[:, 0].to(DEVICE)
    with recording() as log:
        hardest.select(scores)
    assert not log.waits
