"""Where the scores cannot be what a rule takes them for: an error, or a warning, with the remedy."""

import math
import warnings

import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import AutoPrune, ImportancePrune, NoisePrune
from rank_threads import on_ranks

SIZE = 200


def trained(policy, losses, epochs=8, **options):
    """A pruner after ``epochs``; ``losses`` are those of an epoch's samples."""
    pruner = infobatch.Pruner(SIZE, epochs, policy=policy, **options)
    for epoch in range(epochs):
        for index in pruner.batch_sampler(SIZE):
            pruner.update(torch.from_numpy(losses(epoch).astype(np.float32))[index])
    return pruner


def gaussian_nll(epoch):
    """Of a regression whose variance shrinks: positive at first, negative from epoch 3 on."""
    z = np.random.default_rng(epoch).normal(size=SIZE)
    return 0.5 * z**2 + 1.0 - 0.4 * epoch


def cross_entropy(epoch):
    return np.random.default_rng(epoch).exponential(size=SIZE)


@pytest.mark.parametrize("gradient", ["cross_entropy", "root", "score"])
@pytest.mark.parametrize("rule", [AutoPrune, NoisePrune, ImportancePrune])
def test_a_negative_score_raises_with_the_remedy(rule, gradient):
    text = (
        rf"^{rule.__name__}\(.*gradient='{gradient}', .*\) got a score of -0\.[12]\d* before epoch 4, expected "
        r"none below 0: .* would count as learned\. Rank by .* update\(losses, scores=…\), with a "
        r'policy that has gradient="root", .* policy="mean"'
    )
    with pytest.raises(ValueError, match=text):
        trained(rule(gradient=gradient), gaussian_nll)


def test_rules_that_only_compare_scores_take_them():
    assert trained("mean", gaussian_nll).savings.saved
    assert trained("quantile", gaussian_nll).savings.saved
    with pytest.raises(
        ValueError,
        match=r"^max_noise=0\.1 with MeanPrune\(.*\) got a score of -0\.[12].*, or leave max_noise out\.",
    ):
        trained("mean", gaussian_nll, max_noise=0.1)


@pytest.mark.filterwarnings("ignore:.* adds more noise than it promises")  # the losses are random
def test_the_remedy_works():
    pruner = infobatch.Pruner(SIZE, 8, policy=AutoPrune(gradient="root"))
    for epoch in range(8):
        for index in pruner.batch_sampler(SIZE):
            losses = torch.from_numpy(gaussian_nll(epoch))[index].float()
            pruner.update(losses, scores=losses + 0.4 * epoch - 1.0)  # half the squared error
    assert pruner.savings.fraction > 0.2


@pytest.mark.filterwarnings("ignore:.* adds more noise than it promises")  # the losses are random
def test_what_rounding_makes_of_a_loss_of_0_is_no_negative_score():
    def losses(epoch):
        values = cross_entropy(epoch)
        values[:9] = [-0.0, -1e-7, -1e-4, math.nan, math.inf, 0, 0, 0, 0]
        return values

    assert trained("auto", losses).savings.saved


@pytest.mark.parametrize("sharded", [False, True])
def test_every_rank_raises_if_one_has_a_negative_score(sharded):
    def work(pruner, rank):
        for index in pruner.batch_sampler(8):
            losses = torch.tensor([-2.0 if sample == 5 else 1.0 + sample for sample in index])
            pruner.update(losses)
        pruner.set_epoch(1)
        with pytest.raises(ValueError, match="AutoPrune") as raised:
            _ = pruner.plan
        return str(raised.value)

    first, second = on_ranks(2, work, 40, 4, policy="auto", sharded=sharded)
    assert "a score of -2 before epoch 1" in second
    assert ("a negative score on another rank" if sharded else "a score of -2 before") in first


def squared_errors(epoch):
    """Of targets around 1,000: every one is far beyond any cross-entropy."""
    return 1e6 * np.random.default_rng(epoch).uniform(0.5, 1.5, size=SIZE)


def long_sequences(epoch):
    """Mean cross-entropies of a language model."""
    return np.random.default_rng(epoch).normal(4.0, 0.2, size=SIZE)


@pytest.mark.parametrize(("losses", "first"), [(squared_errors, 1), (long_sequences, 2)])
@pytest.mark.parametrize("rule", [AutoPrune, ImportancePrune])
def test_a_rule_that_prunes_at_random_says_so_once(rule, losses, first):
    """At once where the sizes are at their limit, otherwise after a quarter of the run."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        trained(rule(), losses)
    (text,) = [str(warning.message) for warning in raised]
    assert text.startswith(f"{rule.__name__}(")
    assert f"leaves samples out practically at random in epoch {first}:" in text
    assert "gradient='cross_entropy' estimates them" in text
    assert 'pass gradient="root" (a squared error) or gradient="score"' in text


@pytest.mark.parametrize("gradient", ["root", "score"])
def test_what_it_says_to_pass_spreads_the_sizes(gradient):
    assert trained(AutoPrune(gradient=gradient), squared_errors).savings.saved


@pytest.mark.filterwarnings("ignore:.* adds more noise than it promises")  # the losses are random
def test_data_of_which_everything_is_learned_or_little_is_known_is_no_reason_to_warn():
    trained("auto", lambda epoch: np.zeros(SIZE))
    trained("auto", cross_entropy)
    early = infobatch.Pruner(SIZE, 100, policy="auto", initial_scores=long_sequences(0))
    assert len(early.plan) < SIZE, "the first epochs of 100: gradients are still alike"
    few = infobatch.Pruner(9, 2, policy="auto", initial_scores=np.full(9, 20.0))
    assert len(few.plan) <= 9


@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_judge_the_spread_of_all_scores(sharded):
    """Here each rank's samples are alike and the ranks differ, and the other way round."""

    def work(pruner, rank):
        for epoch in range(2):
            for index in pruner.batch_sampler(8):
                pruner.update(torch.tensor([0.1 if sample % 2 else 3.0 for sample in index]))
            pruner.set_epoch(epoch + 1)
        return len(pruner.plan)

    assert len(on_ranks(2, work, 100, 4, policy="auto", sharded=sharded)) == 2


def smoothed_outputs(count=4000, classes=1000):
    """Outputs that are right for 97%, and the labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, classes, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    logits[range(count), labels] += 9 + 3 * torch.randn(count, generator=generator)
    return logits, labels


def test_label_smoothing_makes_auto_keep_more_than_it_has_to_unless_it_knows():
    """The figures of docs/policies/auto.md: 1,000 classes, outputs that are right for 97%."""
    count, classes = 4000, 1000
    logits, labels = smoothed_outputs(count, classes)
    assert (logits.argmax(1) == labels).float().mean().item() == pytest.approx(0.97, abs=0.005)

    def kept(policy="auto", **options):
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none", **options)
        plan = infobatch.Pruner(count, 100, policy=policy, initial_scores=losses).plan
        return round(len(plan) / count, 2)

    assert (kept(label_smoothing=0.1), kept()) == (0.82, 0.48)
    knows = AutoPrune(label_smoothing=0.1, num_classes=classes)
    assert kept(knows, label_smoothing=0.1) == 0.62
    true = infobatch.scoring.cross_entropy(logits, labels, label_smoothing=0.1).extras["gradient"]
    by_size = AutoPrune(gradient="score")
    plan = infobatch.Pruner(count, 100, policy=by_size, initial_scores=true).plan
    assert round(len(plan) / count, 2) == 0.47
    target = np.full(classes, 0.1 / classes)
    target[0] += 0.9
    lowest = -(target @ np.log(target))
    assert (round(lowest, 1), round(1 - math.exp(-lowest), 2)) == (1.0, 0.64)


def test_a_floor_under_all_losses_is_named_once():
    logits, labels = smoothed_outputs(600, 100)

    def train(policy, smoothing):
        pruner = infobatch.Pruner(600, 8, policy=policy)
        losses = torch.nn.functional.cross_entropy(
            logits, labels, reduction="none", label_smoothing=smoothing
        )
        for _ in range(8):
            for index in pruner.batch_sampler(100):
                pruner.update(losses[index])
        return pruner.savings.fraction

    text = (
        r"^AutoPrune\(.*\) found no loss below 0\.8\d before epoch 2, as if there were a floor .* label smoothing"
        r".*scoring\.cross_entropy\(logits, targets, label_smoothing=0\.1\).*AutoPrune\(label_smoothing=0\.1"
    )
    with pytest.warns(UserWarning, match=text) as raised:
        blind = train("auto", 0.1)
    assert len(raised) == 1
    named = train(AutoPrune(label_smoothing=0.1, num_classes=100), 0.1)
    assert named > 1.5 * blind
    train("auto", 0.0)  # without a warning: learned samples have losses near 0


@pytest.mark.parametrize("rule", [AutoPrune, NoisePrune, ImportancePrune])
def test_label_smoothing_needs_the_number_of_classes_and_a_cross_entropy(rule):
    name = rule.__name__
    text = rf"^{name}\(label_smoothing=0\.1\) got no num_classes, expected .* Pass num_classes=…$"
    with pytest.raises(ValueError, match=text):
        rule(label_smoothing=0.1)
    with pytest.raises(
        ValueError, match=rf"^{name}\(num_classes=…\) got 1, expected an integer >= 2"
    ):
        rule(label_smoothing=0.1, num_classes=1)
    with pytest.raises(
        ValueError, match=rf"^{name}\(label_smoothing=…\) got 1.5, expected a number"
    ):
        rule(label_smoothing=1.5, num_classes=10)
    with pytest.raises(ValueError, match=r"got gradient='root', expected 'cross_entropy'"):
        rule(label_smoothing=0.1, num_classes=10, gradient="root")


def test_the_rules_that_texts_name_are_public():
    for rule in (AutoPrune, NoisePrune, ImportancePrune):
        assert getattr(infobatch, rule.__name__) is rule
