"""No class's kept share falls below the bound, and the expected gradient stays the same."""

import numpy as np
import pytest
import torch

import infobatch
from infobatch.plan import Strata, draw_plan
from infobatch.policies import POLICIES
from infobatch.policies.protection import protect_classes

pytestmark = [
    pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning"),
    pytest.mark.filterwarnings(r"ignore:refresh\(\) was not called"),
]
SIZE = 600
LABELS = np.random.default_rng(0).choice(4, SIZE, p=[0.6, 0.3, 0.07, 0.03])


def losses_by_class(epoch):
    """Class 0 is easy: without protection it pays for all that is saved."""
    rng = np.random.default_rng(epoch)
    return (rng.exponential(size=SIZE) * np.array([0.05, 1, 1, 2])[LABELS]).astype(np.float32)


def least_shares(pruner, epochs):
    """For each class the smallest share that an epoch kept."""
    least = np.ones(4)
    for epoch in range(epochs):
        kept = np.bincount(LABELS[pruner.plan.order.numpy()], minlength=4)
        least = np.minimum(least, kept / np.bincount(LABELS))
        order = list(pruner.sampler)
        pruner.update(torch.from_numpy(losses_by_class(epoch))[order])
        pruner.set_epoch(epoch + 1)
    return least


@pytest.mark.filterwarnings("ignore:.* adds more noise than it promises")  # the losses are random
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("least", [0.5, 0.8, 1.0])
def test_every_class_keeps_its_share(name, least):
    epochs = 8 + POLICIES[name]().first_epoch
    options = {"policy": name, "labels": LABELS, "delta": 1.0}
    shares = least_shares(infobatch.Pruner(SIZE, epochs, protect_classes=least, **options), epochs)
    assert (shares >= least).all()


def test_without_protection_the_easy_class_pays():
    shares = least_shares(infobatch.Pruner(SIZE, 8, policy="ucb", labels=LABELS), 8)
    assert shares[0] < 0.3 < shares[3]


def test_expected_weights_stay_1():
    """Which samples are kept for sure is drawn at random, so each weighs 1 on average."""
    labels = np.repeat(np.array([1, 2], np.uint8), [100, 100])
    classes = np.arange(200) % 2
    strata = Strata(labels, (0.2, 0.6))
    samples = infobatch.Samples(np.ones(200, np.float32), labels=classes)
    total = np.zeros(200)
    draws = 2000
    for seed in range(draws):
        protected = protect_classes(
            strata, infobatch.Samples(samples.scores, labels=classes, seed=seed), 0.5
        )
        plan = draw_plan(protected, seed=seed, epoch=0)
        total[plan.order.numpy()] += plan.weights.numpy()
        kept = np.bincount(classes[plan.order.numpy()], minlength=2)
        assert (kept >= 50).all()
    spread = np.sqrt(4 / draws)  # at most 1/p − 1
    assert np.abs(total / draws - 1).max() < 5 * spread


def test_classes_that_keep_enough_are_left_alone():
    strata = Strata(np.ones(200, np.uint8), (0.9,))
    samples = infobatch.Samples(np.ones(200, np.float32), labels=np.arange(200) % 2)
    assert protect_classes(strata, samples, 0.5) is not None
    assert np.array_equal(protect_classes(strata, samples, 0.5).labels, strata.labels)


class Labelled:
    targets = LABELS.tolist()

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


def test_labels_of_the_data_set_are_found():
    train_data = infobatch.InfoBatch(Labelled(), 8, policy="ucb", protect_classes=0.6)
    assert (least_shares(train_data.pruner, 8) >= 0.6).all()


def test_errors():
    with pytest.raises(ValueError, match=r"protect_classes got 2, expected a share in \[0, 1\]"):
        infobatch.Pruner(SIZE, 8, protect_classes=2, labels=LABELS)
    with pytest.raises(
        ValueError, match=r"protect_classes=0.5 got no labels, expected the class of"
    ):
        infobatch.Pruner(SIZE, 8, protect_classes=0.5)
    with pytest.raises(
        ValueError, match=r"labels got an array of shape \(3,\), expected one value"
    ):
        infobatch.Pruner(SIZE, 8, protect_classes=0.5, labels=np.ones(3))
