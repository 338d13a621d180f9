"""Sizes of gradients that a scoring function reports: rules that go by them use them instead of the score."""

import numpy as np
import pytest
import torch

import infobatch
from infobatch import scoring
from infobatch.per_sample import PerSample
from infobatch.policies import AutoPrune, ImportancePrune
from infobatch.policies.gradient import Smoothed, gradient_size
from rank_threads import on_ranks

SIZE = 400


def sizes_of(index):
    return 0.05 + (torch.as_tensor(index) % 10) ** 2 / 50.0


def train(pruner, epochs, report=True, until=None):
    """Losses that say nothing, and sizes that say everything."""
    for epoch in range(pruner.epoch, epochs):
        pruner.set_epoch(epoch)
        for step, index in enumerate(pruner.batch_sampler(50)):
            losses = 0.01 + (torch.as_tensor(index) * 7 % 11) / 10.0
            extras = {"gradient": sizes_of(index)} if report else {}
            pruner.update(PerSample(losses, losses, extras))
            if (epoch, step) == until:
                return pruner
    return pruner


@pytest.mark.parametrize("policy", ["auto", ImportancePrune(0.3)])
def test_reported_sizes_decide(policy):
    pruner = train(infobatch.Pruner(SIZE, 6, policy=policy), 5)
    weights = np.zeros(SIZE)
    weights[pruner.plan.order] = pruner.plan.weights
    sizes = sizes_of(range(SIZE)).numpy()
    assert weights[sizes > 1].max() < 1.2 < weights[(weights > 0) & (sizes < 0.1)].min()
    assert pruner.savings.epochs[-1].added_noise > 0.02


def test_they_are_remembered_as_a_moving_average_only_if_they_are_reported():
    pruner = train(infobatch.Pruner(SIZE, 6, policy="auto"), 3)
    assert set(pruner.state_dict()["columns"]) == {"score", "ema", "gradient"}
    plain = train(infobatch.Pruner(SIZE, 6, policy="auto"), 3, report=False)
    assert set(plain.state_dict()["columns"]) == {"score", "ema"}
    by_root = train(infobatch.Pruner(SIZE, 6, policy=AutoPrune(gradient="root")), 3)
    assert set(by_root.state_dict()["columns"]) == {"score", "ema"}, "the user has decided"


def test_plain_losses_are_pruned_as_before():
    """Bit for bit by 1 − exp(−loss), whether or not a rule could have had sizes."""

    def plans(policy):
        pruner = infobatch.Pruner(SIZE, 6, policy=policy)
        losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(1)) ** 3
        for _ in range(4):
            for index in pruner.batch_sampler(50):
                pruner.update(losses[index])
        return pruner.plan.order.tolist()

    class WithoutSizes(AutoPrune):
        tracks = ()

    assert plans("auto") == plans(WithoutSizes())


def test_a_resumed_run_goes_on_with_them():
    straight = train(infobatch.Pruner(SIZE, 6, policy="auto"), 5)
    stopped = train(infobatch.Pruner(SIZE, 6, policy="auto"), 5, until=(3, 2))
    resumed = infobatch.Pruner(SIZE, 6, policy="auto")
    resumed.load_state_dict(stopped.state_dict())
    train(resumed, 5)
    assert resumed.plan.order.tolist() == straight.plan.order.tolist()
    again = train(infobatch.Pruner(SIZE, 6, policy="auto"), 2)
    again.load_state_dict(infobatch.Pruner(SIZE, 6, policy="auto").state_dict())
    assert "gradient" not in again.state_dict()["columns"], "the loaded state has none"


@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_use_them_alike(sharded):
    def work(pruner, rank):
        train(pruner, 3)
        pruner.set_epoch(3)
        return len(pruner.plan)

    kept = on_ranks(2, work, SIZE, 6, policy="auto", sharded=sharded)
    alone = len(train(infobatch.Pruner(SIZE, 6, policy="auto"), 3).plan)
    assert (sum(kept) if sharded else kept[0]) == pytest.approx(alone, abs=4)


def test_negative_losses_do_not_matter_where_the_sizes_are_known():
    pruner = infobatch.Pruner(SIZE, 4, policy="auto")
    for _ in range(3):
        for index in pruner.batch_sampler(50):
            losses = torch.full((len(index),), -1.0)
            pruner.update(losses, extras={"gradient": sizes_of(index)})
    assert pruner.savings.saved


def test_squared_errors_need_no_setting():
    """The loss is far beyond any cross-entropy: without sizes the rule would choose at random, and warn."""
    targets = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) ** 3
    pruner = infobatch.Pruner(SIZE, 8, policy="auto")
    for _ in range(8):
        for index in pruner.batch_sampler(50):
            pruner.update(scoring.mse(100 * targets[index], torch.zeros(len(index))))
    assert pruner.savings.fraction > 0.3


@pytest.mark.parametrize(("smoothing", "classes"), [(0.1, 10), (0.1, 1000), (0.3, 2)])
def test_the_size_of_a_smoothed_cross_entropy(smoothing, classes):
    """Exact where the other classes are alike, from the loss alone."""
    label = 1 - smoothing + smoothing / classes
    p = np.linspace(1e-4, label - 1e-3, 200)
    logits = torch.from_numpy(
        np.stack([np.log(p)] + [np.log((1 - p) / (classes - 1))] * (classes - 1), 1)
    )
    labels = torch.zeros(200, dtype=torch.int64)
    losses = torch.nn.functional.cross_entropy(
        logits, labels, reduction="none", label_smoothing=smoothing
    )
    sizes = gradient_size(losses.float().numpy(), Smoothed(smoothing, classes))
    assert sizes == pytest.approx(label - p, rel=1e-2, abs=1e-3)
    assert np.isnan(gradient_size(np.array([np.nan], np.float32), Smoothed(smoothing, classes)))
    assert gradient_size(np.zeros(1, np.float32), Smoothed(smoothing, classes)) == 0


def test_the_noise_that_was_realised_is_measured_by_them():
    """Sizes that do not change: what the plan promises is what happens; the losses are of no account."""
    pruner = train(infobatch.Pruner(SIZE, 6, policy="auto"), 5)
    for epoch in pruner.savings.epochs[2:]:
        assert epoch.added_noise == pytest.approx(0.2, abs=0.03)
        assert epoch.realised_noise == pytest.approx(epoch.added_noise, abs=0.06)


def test_a_shadow_sees_them_as_a_pruned_run_would():
    pruned = train(infobatch.Pruner(SIZE, 6, policy="auto"), 5)
    shadowed = train(infobatch.Pruner(SIZE, 6, policy="none", shadow=("auto",)), 5)
    shadow = shadowed._course.shadows["auto"].history
    assert [epoch.planned for epoch in shadow] == [epoch.planned for epoch in pruned.savings.epochs]
    noise = [epoch.realised_noise for epoch in pruned.savings.epochs]
    assert [epoch.realised_noise for epoch in shadow] == pytest.approx(noise, rel=1e-5)


def test_keys_that_come_later_do_not_make_the_others_forget():
    pruner = infobatch.KeyedPruner(6, policy="auto")

    def epoch(number, keys):
        pruner.set_epoch(number)
        kept = [key for key in keys if pruner.keeps(key)]
        losses = torch.linspace(0.01, 1.0, len(kept))
        pruner.update(losses, key=kept, extras={"gradient": sizes_of(kept)})
        return kept

    epoch(0, range(300))
    epoch(1, range(400))  # a hundred more
    kept = epoch(2, range(400))
    by_size = {
        size: sum(sizes_of([key])[0] == size for key in kept) for size in sizes_of(range(10))
    }
    counts = list(by_size.values())
    assert counts[0] < 25, "small gradients are left out, of the first keys as well"
    assert counts[-1] == 40
