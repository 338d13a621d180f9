"""A script that was written for the published package runs unchanged."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from infobatch import InfoBatch, Policy


class Images(TensorDataset):
    classes = ["cat", "dog"]  # noqa: RUF012 - as torchvision's data sets have it
    transform = "a transform"


@pytest.mark.parametrize("by_keyword", [False, True])
def test_published_usage(by_keyword):
    x = torch.randn(300, 6)
    trainset = Images(x, (x.sum(1) > 0).long())
    num_epoch, ratio, delta = 5, 0.5, 0.875
    if by_keyword:
        trainset = InfoBatch(dataset=trainset, num_epochs=num_epoch, prune_ratio=ratio, delta=delta)
    else:
        trainset = InfoBatch(trainset, num_epoch, ratio, delta)
    trainloader = DataLoader(trainset, batch_size=32, num_workers=0, sampler=trainset.sampler)
    assert trainset.classes == ["cat", "dog"]
    assert trainset.transform == "a transform"
    assert len(trainset) == 300
    net = nn.Linear(6, 2)
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    counts = []
    for epoch in range(num_epoch):
        trainloader.sampler.set_epoch(epoch)
        total = 0
        for inputs, targets in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss = trainset.update(loss)
            loss.backward()
            optimizer.step()
            total += len(targets)
        counts.append(total)
    saved = trainset.get_pruned_count()
    assert saved == 300 * num_epoch - sum(counts)
    assert saved > 0
    assert counts[0] == 300, "the first epoch is whole"
    assert counts[1] < 300
    assert len(trainset.sampler) == counts[-1], "as many as the loop just finished"


def trained(**options):
    """Two epochs of a run, the second pruned."""
    trainset = InfoBatch(TensorDataset(torch.arange(40.0)), 4, **options)
    for _ in range(2):
        for (x,) in DataLoader(trainset, 8, sampler=trainset.sampler):
            trainset.update(x)
    return trainset


def test_names_that_forks_use():
    trainset = trained(prune_ratio=0.3, delta=1.0)
    assert trainset.num_epochs == 4
    assert trainset.delta == 1.0
    assert trainset.keep_ratio == 0.7
    assert trainset.get_saved_ratio() == trainset.savings.fraction > 0
    assert len(trainset.weights) == 40
    assert trainset.weights.dtype == torch.float32, "as the losses that it multiplies"
    assert trainset.weights.sum().item() == pytest.approx(40)
    left_out = sorted(set(range(40)) - set(trainset.plan.order.tolist()))
    assert left_out
    assert (trainset.weights[left_out] == 0).all()


@pytest.mark.parametrize("policy", ["mean", "quantile", "random", "noise", "importance", "none"])
def test_names_that_forks_use_under_other_rules(policy):
    trainset = trained(policy=policy, delta=1.0)
    assert trainset.num_epochs == 4
    assert trainset.delta == 1.0
    assert trainset.get_saved_ratio() == trainset.savings.fraction >= 0
    assert torch.equal(trainset.weights != 0, torch.isin(torch.arange(40), trainset.plan.order))
    with pytest.raises(AttributeError, match=r"InfoBatch.scores cannot be set: .*initial_scores"):
        trainset.scores = torch.zeros(40)
    visited = []
    for (x,) in DataLoader(trainset, 8, sampler=trainset.sampler):
        trainset.update(x, x + 100)
        visited += x.int().tolist()
    assert trainset.scores[visited].tolist() == [100.0 + i for i in visited]
    text = r"prune_ratio=…\) got 200, .* The order is \(dataset, num_epochs, prune_ratio, delta\)"
    with pytest.raises(ValueError, match=text):
        InfoBatch(range(10), 0.5, 200, 0.875, policy=policy)


@pytest.mark.parametrize("policy", ["mean", "random", "importance"])
def test_the_kept_ratio_of_the_rules_that_have_one(policy):
    assert InfoBatch(range(4), 2, 0.25, policy=policy).keep_ratio == 0.75
    assert InfoBatch(range(4), 2, policy=policy).keep_ratio == 0.5


@pytest.mark.parametrize("policy", ["quantile", "noise", "none"])
def test_a_rule_without_a_ratio_says_what_to_use_instead(policy):
    trainset = InfoBatch(range(4), 2, policy=policy)
    text = (
        r"InfoBatch.keep_ratio is 1 - prune_ratio, but \w+\(.*\) has no prune_ratio. Use "
        r"len\(train_data.plan\) / train_data.plan.num_samples .*, train_data.savings.fraction .*, and "
        r"train_data.policy"
    )
    with pytest.raises(AttributeError, match=text):
        _ = trainset.keep_ratio
    assert not hasattr(trainset, "keep_ratio")


def test_a_budget_has_no_kept_ratio():
    """The rule's own ratio would be wrong: the budget scales it."""
    trainset = InfoBatch(range(4), 10, save=0.4)
    text = (
        r"keep_ratio is 1 - prune_ratio, but save=0.4 adapts it to the budget in every epoch. Use"
    )
    with pytest.raises(AttributeError, match=text):
        _ = trainset.keep_ratio


def test_an_attribute_error_inside_a_rule_is_not_taken_for_a_missing_name():
    class Broken(Policy):
        def strata(self, samples):
            return samples.mistake

    trainset = InfoBatch(range(4), 2, policy=Broken(), initial_scores=torch.arange(4.0))
    with pytest.raises(AttributeError, match="'Samples' object has no attribute 'mistake'"):
        _ = trainset.plan


def test_a_schedule_that_is_made_again_in_each_epoch():
    """As in the authors' example, whose last epoch is longer than the one before: it is whole."""
    trainset = InfoBatch(TensorDataset(torch.arange(80.0)), 8)
    loader = DataLoader(trainset, 8, sampler=trainset.sampler)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    OneCycleLR(optimizer, 0.1, epochs=8, steps_per_epoch=len(loader))
    lengths = []
    for epoch in range(8):
        loader.sampler.set_epoch(epoch)
        lengths.append(len(loader))
        done = epoch * len(loader)
        schedule = OneCycleLR(
            optimizer, 0.1, epochs=8, steps_per_epoch=len(loader), last_epoch=done - 1
        )
        for (x,) in loader:
            trainset.update(x)
            optimizer.step()
            schedule.step()
        assert schedule.last_epoch == done + len(loader), "exactly an epoch further"
    assert lengths[6] < lengths[7] == 10


def test_scores_by_position():
    trainset = InfoBatch(TensorDataset(torch.arange(8.0)), 3)
    for (x,) in DataLoader(trainset, 8, sampler=trainset.sampler):
        trainset.update(x, x + 100)
    assert trainset.scores.tolist() == [100.0 + i for i in range(8)]


def test_the_last_loss_is_the_plain_mean():
    """What update returns jumps where pruning begins, because of the weights; this does not."""
    trainset = InfoBatch(TensorDataset(torch.arange(40.0)), 4, delta=1.0)
    with pytest.raises(RuntimeError, match=r"last_loss is that of the last update\(\): call"):
        _ = trainset.last_loss
    differs = False
    for _ in range(2):
        for (x,) in DataLoader(trainset, 8, sampler=trainset.sampler):
            losses = (x + 1).requires_grad_()
            returned = trainset.update(losses)
            assert torch.equal(trainset.last_loss, losses.detach().mean())
            assert not trainset.last_loss.requires_grad
            differs = differs or returned.item() != trainset.last_loss.item()
    assert differs


def test_what_is_missing_is_said_of_infobatch():
    trainset = trained()
    text = r"InfoBatch has no attribute 'missing', and neither has the TensorDataset that it wraps"
    with pytest.raises(AttributeError, match=text):
        _ = trainset.missing
    with pytest.raises(AttributeError, match=r"InfoBatch.scores cannot be set: .*initial_scores"):
        trainset.scores = torch.zeros(40)


def test_the_older_order_of_arguments_is_recognised():
    text = r"prune_ratio=…\) got 200, .* The order is \(dataset, num_epochs, prune_ratio, delta\)"
    with pytest.raises(ValueError, match=text):
        InfoBatch(range(10), 0.5, 200, 0.875)
    text = (
        r"num_epochs got 0.5, .* Is it the ratio\? InfoBatch's order is \(dataset, num_epochs, pr"
    )
    with pytest.raises(ValueError, match=text):
        InfoBatch(range(10), 0.5)


@pytest.mark.parametrize("name", ["prune", "no_prune"])
def test_a_subclass_with_a_rule_of_its_own_is_told_about_policies(name):
    with pytest.raises(
        TypeError, match=rf"Mine overrides {name}\(\), .* policy=.*derives from infobatch.Policy"
    ):
        type("Mine", (InfoBatch,), {name: lambda self: []})
    rules = type("Rules", (), {name: lambda self: []})
    with pytest.raises(TypeError, match=rf"Mine overrides {name}\(\)"):
        type("Mine", (rules, InfoBatch), {})
    type("Fine", (InfoBatch,), {"other": 1})


def test_full_data_steps_for_a_schedule_computed_by_hand():
    """As nanoGPT's get_lr(iteration): each epoch, pruned or not, advances by a full epoch."""
    trainset = InfoBatch(TensorDataset(torch.arange(40.0)), 4, delta=1.0)
    loader = DataLoader(trainset, 8, sampler=trainset.sampler)
    for epoch in range(4):
        steps = []
        for (x,) in loader:
            steps.append(trainset.virtual_step(5))
            trainset.update(x)
        assert steps[0] == 5 * epoch
        assert steps == sorted(steps)
        assert trainset.virtual_step(5) == 5 * (epoch + 1)
    assert len(steps) < 5
    with pytest.raises(
        ValueError, match=r"virtual_step\(\): steps_per_epoch got 0, expected an int"
    ):
        trainset.virtual_step(0)
