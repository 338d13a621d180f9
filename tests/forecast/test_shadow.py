"""Rules followed on all data: what they record is what a really pruned run records."""

import io
import itertools
import math
import re
import warnings

import numpy as np
import pytest
import torch

import infobatch
from infobatch.distributed.checkpoint import Checkpointable
from infobatch.forecast.realised import noise_sums, realised_noise
from infobatch.policies import AutoPrune, MeanPrune, NoisePrune
from infobatch.policies.registry import POLICIES
from rank_threads import on_ranks

SIZE, EPOCHS, BATCH = 300, 6, 64
LABELS = np.arange(SIZE) % 3


def all_losses(epoch):
    """Losses that fall at different speeds and are noisy, the same in every run; some are NaN."""
    samples = torch.arange(SIZE)
    hard = (samples * 37 % 101).float() / 101
    noise = (samples * (13 + epoch) % 17).float() / 17
    losses = 3 * hard.pow(1 + epoch / 2) * (0.5 + noise)
    losses[samples % 97 == epoch] = torch.nan
    return losses


LOSSES = [all_losses(epoch) for epoch in range(EPOCHS)]


def loss_of(samples, epoch):
    return LOSSES[epoch][torch.as_tensor(samples)]


def extras_of(samples):
    samples = torch.as_tensor(samples)
    return {
        "correct": (samples % 5 > 0).float(),
        "confidence": (samples % 11).float() / 11,
        "probability": (samples % 7).float() / 7,
    }


def reported(pruner, samples):
    """Those that the rules need; a rule can do without the sizes of gradients."""
    known = extras_of(samples)
    return {name: known[name] for name in pruner._channels if name != "gradient"}


def train(pruner, *, epochs=range(EPOCHS), by_index=False, stop=None):
    """Train, in the form with or without the index; stop in the middle of an epoch if asked."""
    for epoch in epochs:
        pruner.set_epoch(epoch)
        for step, batch in enumerate(pruner.batch_sampler(BATCH)):
            if stop == (epoch, step):
                return pruner
            given = reported(pruner, batch)
            index = torch.tensor(batch) if by_index else None
            pruner.update(loss_of(batch, epoch), index=index, extras=given or None)
        if pruner.policy.refreshes:
            left = pruner.left_out
            given = reported(pruner, left)
            pruner.refresh(loss_of(left, epoch), left, extras=given or None)
    return pruner


def recorded(epochs):
    """What a plan says about an epoch, and what the losses said about it."""
    return [
        (
            epoch.epoch,
            epoch.planned,
            epoch.unscored,
            epoch.thresholds,
            epoch.added_noise,
            epoch.realised_noise,
            epoch.planned_cost,
            epoch.refreshed,
            round(epoch.refreshed_cost, 12),
        )
        for epoch in epochs
    ]


RULES = [name for name in POLICIES if name not in ("none", "repb")]


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore::infobatch.BiasedPolicyWarning")
def test_a_shadow_is_a_pruned_run_with_the_same_losses(rule, by_index):
    options = {"labels": LABELS, "seed": 3}
    pruned = train(infobatch.Pruner(SIZE, EPOCHS, policy=rule, **options), by_index=by_index)
    full = infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=rule, **options)
    train(full, by_index=by_index)
    assert full.savings.saved == 0
    followed = full.forecast().rules[rule].epochs
    assert recorded(followed) == recorded(pruned.savings.epochs)
    if rule not in ("dyn_unc",):  # which needs more epochs to choose
        assert any(epoch.planned < epoch.full for epoch in followed)


@pytest.mark.parametrize(
    "options",
    [
        {"max_noise": 0.05},
        {"cost": np.linspace(1, 3, SIZE)},
        {"protect_classes": 0.8, "labels": LABELS},
        {"warmup": 2, "delta": 0.8},
        {"initial_scores": np.linspace(0, 2, SIZE, dtype=np.float32)},
    ],
)
def test_a_shadow_has_the_options_of_the_run(options):
    for rule in ("auto", MeanPrune(0.7, smoothing=0.5), NoisePrune(aging=0.2)):
        pruned = train(infobatch.Pruner(SIZE, EPOCHS, policy=rule, **options))
        full = train(infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=rule, **options))
        (followed,) = full.forecast().rules.values()
        assert recorded(followed.epochs) == recorded(pruned.savings.epochs)


def test_a_shadow_may_have_options_of_its_own():
    own = infobatch.Options(policy="mean", delta=1.0, warmup=2, max_noise=0.1)
    pruned = train(infobatch.Pruner(SIZE, EPOCHS, **own.arguments() | {"seed": 5}))
    full = train(infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=("mean", own), seed=5))
    rules = full.forecast().rules
    assert list(rules) == ["mean", "mean(delta=1.0, warmup=2, max_noise=0.1)"]
    assert recorded(list(rules.values())[1].epochs) == recorded(pruned.savings.epochs)


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("stop", [(0, 2), (2, 0), (2, 3), (5, 1)])
def test_resuming_gives_the_same_forecast(stop, by_index):
    def new():
        rules = ("auto", "mean", NoisePrune(aging=0.3), "dyn_unc")
        return infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=rules)

    straight = train(new(), by_index=by_index)
    first = train(new(), stop=stop, by_index=by_index)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = new()
    second.load_state_dict(torch.load(buffer, weights_only=True))
    train(second, epochs=range(stop[0], EPOCHS), by_index=by_index)
    for name, rule in straight.forecast().rules.items():
        assert recorded(second.forecast().rules[name].epochs) == recorded(rule.epochs)
    after = second.state_dict()["shadows"]
    for name, shadow in straight.state_dict()["shadows"].items():
        for column, values in shadow["columns"].items():
            torch.testing.assert_close(after[name]["columns"][column], values, equal_nan=True)


def test_a_state_without_shadows_is_continued_from_its_scores():
    first = train(infobatch.Pruner(SIZE, EPOCHS, policy="none"), epochs=range(2))
    second = infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow="auto")
    second.load_state_dict(first.state_dict())
    scores = second.scores.clone()
    train(second, epochs=range(2, EPOCHS))
    followed = second.forecast().rules["auto"].epochs
    assert [epoch.epoch for epoch in followed] == [2, 3, 4, 5]
    assert followed[0].planned < SIZE, "it knows the scores of the first two epochs"
    third = infobatch.Pruner(SIZE, EPOCHS, policy="none")
    third.load_state_dict(first.state_dict())
    torch.testing.assert_close(third.scores, scores, equal_nan=True)


def test_the_state_of_a_distributed_checkpoint():
    full = train(
        infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=("auto", "mean")), epochs=range(3)
    )
    saved = Checkpointable(full).state_dict()
    fresh = infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=("auto", "mean"))
    empty = Checkpointable(fresh).state_dict()
    sizes = {name: column.shape for name, column in empty["shadows"]["auto"].items()}
    assert sizes == {name: column.shape for name, column in saved["shadows"]["auto"].items()}
    Checkpointable(fresh).load_state_dict(saved)
    for name, rule in full.forecast().rules.items():
        assert recorded(fresh.forecast().rules[name].epochs) == recorded(rule.epochs)


def walked(pruner, rank):
    """One rank's part of every epoch, without a batch sampler."""
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        for sample in pruner.sampler:
            pruner.update(loss_of([sample], epoch))
    return pruner.forecast()


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_has_the_forecast_of_one(world_size):
    rules = ("auto", "mean", "quantile")
    alone = train(infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow=rules)).forecast()
    forecasts = on_ranks(world_size, walked, SIZE, EPOCHS, policy="none", shadow=rules)
    for forecast in forecasts:
        for name, rule in alone.rules.items():
            assert recorded(forecast.rules[name].epochs) == recorded(rule.epochs)


def test_sharded_ranks_agree_and_match_pruned_ones():
    def savings(pruner, rank):
        walked(pruner, rank)
        return pruner.savings.epochs

    options = {"sharded": True, "policy": "none", "shadow": ("auto", "mean")}
    forecasts = on_ranks(2, walked, SIZE, EPOCHS, **options)
    assert forecasts[0] == forecasts[1]
    for rule in ("auto", "mean"):
        pruned = on_ranks(2, savings, SIZE, EPOCHS, sharded=True, policy=rule)
        assert recorded(pruned[0]) == recorded(pruned[1])
        followed = forecasts[0].rules[rule].epochs
        assert [e.planned for e in followed] == [e.planned for e in pruned[0]]
        noise = [e.realised_noise for e in followed]
        assert noise == pytest.approx([e.realised_noise for e in pruned[0]])


# The realised noise.


def slow_realised_noise(pruner, epoch):
    """Σ w² g² / Σ w g² − 1, one sample after the other."""
    above = below = 0.0
    for sample, weight in zip(
        pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True
    ):
        loss = loss_of([sample], epoch).item()
        if not math.isnan(loss):
            size = 1 - math.exp(-loss)
            above += weight**2 * size**2
            below += weight * size**2
    return above / below - 1


def test_a_pruned_run_measures_the_noise_that_it_added():
    pruner = infobatch.Pruner(SIZE, EPOCHS, policy="quantile")
    expected = []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        expected.append(slow_realised_noise(pruner, epoch))
        train(pruner, epochs=[epoch])
        assert pruner.savings.as_dict()["infobatch/realised_noise"] == pytest.approx(
            expected[-1], abs=1e-6
        )
    measured = [epoch.realised_noise for epoch in pruner.savings.epochs]
    assert measured == pytest.approx(expected, abs=1e-6)
    assert measured[0] == 0.0
    assert measured[2] > 0.1


def test_both_sums_are_unbiased_by_enumeration():
    """Every draw of 2 of 5 and 1 of 3 samples, with two samples always kept."""
    sizes = np.array([0.9, 0.1, 0.4, 0.7, 0.2, 0.5, 0.3, 0.8, 0.6, 0.05], np.float32)
    strata = [(0, 1), (2, 3, 4, 5, 6), (7, 8, 9)]
    kept = (2, 2, 1)
    draws = list(
        itertools.product(
            *(itertools.combinations(rows, k) for rows, k in zip(strata, kept, strict=True))
        )
    )
    total = np.zeros(2)
    for draw in draws:
        for rows, part, k in zip(strata, draw, kept, strict=True):
            weights = np.full(k, len(rows) / k)
            total += noise_sums(weights, sizes[list(part)])
    expected = [0.0, 0.0]
    for rows, k in zip(strata, kept, strict=True):
        squares = sum(float(sizes[row]) ** 2 for row in rows)
        expected[0] += squares * len(rows) / k
        expected[1] += squares
    assert total / len(draws) == pytest.approx(expected)
    assert realised_noise(np.array(expected)) == pytest.approx(expected[0] / expected[1] - 1)


def test_without_gradients_no_noise_is_known():
    assert realised_noise(np.zeros(2)) is None
    pruner = infobatch.Pruner(40, 3, delta=1.0)
    for epoch in range(3):
        count = len(list(pruner.sampler))
        losses = torch.arange(count).float() if epoch == 0 else torch.zeros(count)
        pruner.update(losses)
    assert [epoch.realised_noise for epoch in pruner.savings.epochs] == [0.0, None, None]
    assert "infobatch/realised_noise" not in pruner.savings.as_dict()


@pytest.mark.filterwarnings("ignore::infobatch.BiasedPolicyWarning")
def test_a_biased_rule_has_no_realised_noise():
    pruned = train(infobatch.Pruner(SIZE, EPOCHS, policy=MeanPrune(rescale=False)))
    epochs = pruned.savings.epochs
    assert all((epoch.realised_noise is None) == (epoch.planned < SIZE) for epoch in epochs)


def test_a_rule_that_adds_far_more_noise_than_it_promises_warns_once():
    generator = torch.Generator().manual_seed(0)
    pruner = infobatch.Pruner(2000, 12, policy=AutoPrune(smoothing=0.0))
    message = (
        r"AutoPrune\(.*\) adds more noise than it promises: 2\.27 of the gradient noise in epochs 1 to 5, "
        r"by the losses of these epochs, where 0\.20 was expected from earlier ones\. The scores do not "
        r"predict the gradients, .* print\(train_data\.forecast\(\)\) .*smoothing=0\.9"
    )

    def train_for(epochs):
        for _ in range(epochs):
            count = len(list(pruner.sampler))
            pruner.update(torch.rand(count, generator=generator) ** 4)

    train_for(5)
    with pytest.warns(UserWarning, match=message):
        train_for(1)
    train_for(6)  # warnings are errors


def test_a_rule_that_promises_nothing_does_not_warn():
    generator = torch.Generator().manual_seed(0)
    pruner = infobatch.Pruner(2000, 12, policy="mean")
    for _ in range(12):
        pruner.update(torch.rand(len(list(pruner.sampler)), generator=generator) ** 4)
    last = pruner.savings.epochs[9]
    assert last.realised_noise > 0.2 > last.added_noise


# Doubts and errors.


def train_on(pruner, losses):
    """Train for all eight epochs, each sample with the same loss in each."""
    for _ in range(8):
        pruner.update(losses[list(pruner.sampler)])


@pytest.mark.parametrize("shadow", ["auto", ("mean", NoisePrune(0.1))])
def test_a_floor_under_the_losses_is_named_once_although_nothing_is_pruned(shadow):
    full = infobatch.Pruner(1000, 8, policy="none", shadow=shadow)
    losses = 0.5 + torch.linspace(0, 1, 1000)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train_on(full, losses)
    (warning,) = seen
    assert "found no loss below 0.50 before epoch 2, as if there were a floor" in str(
        warning.message
    )
    forecast = full.forecast()
    assert [rule.doubtful for rule in forecast.rules.values()] == [
        name != "mean" for name in forecast.rules
    ]
    if shadow == "auto":
        assert forecast.sentence.startswith("Do not prune here: the best rule, auto, would save")
        assert forecast.sentence.endswith(
            " But the losses do not show the sizes of the gradients to auto, as a warning said: follow "
            "what it says, and it may save more."
        )


def test_a_rule_that_the_losses_are_not_for_is_no_longer_followed():
    """Of a Gaussian, say, whose variance shrinks: the training goes on, and so do the other rules."""
    full = infobatch.Pruner(SIZE, 8, policy="none", shadow=("auto", "mean"))
    losses = torch.linspace(0, 2, SIZE) ** 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for epoch in range(8):
            full.update(losses[list(full.sampler)] - 0.3 * max(epoch - 2, 0))
    (warning,) = seen
    text = str(warning.message)
    assert re.search(r"got a score of -0\.\d+ before epoch 4, expected none below 0", text)
    assert text.endswith("Until then it is not followed, and has no forecast.")
    rules = full.forecast().rules
    assert [len(rule.epochs) for rule in rules.values()] == [0, 8]
    assert full.forecast().best == "mean"
    assert "\nauto  not followed: it cannot use these losses\nmean" in str(full.forecast())
    only = infobatch.Pruner(SIZE, 8, policy="none", shadow="auto")
    with pytest.warns(UserWarning, match="before epoch 1"):
        train_on(only, losses - 1)
    assert only.forecast().sentence == (
        "No forecast: the rules cannot use these losses; the warning during training says why and what "
        "to change."
    )


def test_a_biased_shadow_needs_no_warning():
    train(infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow="ucb"))  # warnings are errors


def test_errors():
    with pytest.raises(ValueError, match=r"shadow=\('auto',\) was given with MeanPrune.*, expected "
                       'policy="none": a rule can only be followed beside a training on all data'):  # fmt: skip
        infobatch.Pruner(10, 2, shadow="auto")
    with pytest.raises(ValueError, match="has the rule auto twice, expected it once"):
        infobatch.Pruner(10, 2, policy="none", shadow=("auto", "auto"))
    with pytest.raises(ValueError, match="policy='autto' is not known"):
        infobatch.Pruner(10, 2, policy="none", shadow="autto")
    with pytest.raises(TypeError, match="sharded=True got policy=SetaPrune"):
        infobatch.Pruner(10, 2, policy="none", shadow="seta", sharded=True)
    with pytest.raises(ValueError, match="got no labels, expected the class of each sample"):
        infobatch.Pruner(10, 2, policy="none", shadow="rcap")
    with pytest.raises(RuntimeError, match=r'forecast\(\) was called where policy="none" prunes '
                       r"nothing and no rule is followed.*shadow="):  # fmt: skip
        infobatch.Pruner(10, 2, policy="none").forecast()


def test_a_damaged_shadow_is_noticed():
    full = train(infobatch.Pruner(SIZE, EPOCHS, policy="none", shadow="auto"), epochs=range(2))
    for damage in ({"auto": {}}, {"auto": {"columns": {}, "history": []}}):
        state = {**full.state_dict(), "shadows": damage}
        with pytest.raises(ValueError, match="damaged state"):
            full.load_state_dict(state)
